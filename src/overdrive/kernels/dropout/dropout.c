/* What dropout multiplies by, from torch's own stream of random numbers: the same numbers, and the same state after.

   torch's generator on a CPU is the Mersenne Twister (MT19937, Matsumoto and Nishimura 1998). For each number that
   is kept or not it draws two words of 32 bits, the first of which comes above, and keeps it where the lowest 53 bits
   are less than keep * 2^53. torch asks the generator for one word at a time; here all 624 are renewed, mixed and
   compared in vector registers.

   `state` is what `Generator.get_state` gives: how many words are left, and the words, 64 bits each. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define WORDS 624
#define SHIFT 397

typedef struct {
  uint64_t seed;
  int32_t left, seeded;
  uint64_t next;
  uint64_t words[WORDS];
} torchs;

static inline uint32_t twisted(uint32_t one, uint32_t other) {
  const uint32_t mixed = (one & 0x80000000u) | (other & 0x7fffffffu);
  return (mixed >> 1) ^ ((0u - (other & 1u)) & 0x9908b0dfu);
}

static void renew(uint32_t *s) {
  int i = 0;
  for (; i < WORDS - SHIFT; i++) s[i] = s[i + SHIFT] ^ twisted(s[i], s[i + 1]);
  for (; i < WORDS - 1; i++) s[i] = s[i + SHIFT - WORDS] ^ twisted(s[i], s[i + 1]);
  s[i] = s[SHIFT - 1] ^ twisted(s[i], s[0]);
}

static inline uint32_t tempered(uint32_t y) {
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

/* `out`: `count` floats, each 1 / keep where it is kept, else 0. torch divides 1 by the share as a float: of 0.85 the
   quotient of doubles, rounded once, is another float. */
void kept(torchs *state, float *out, int64_t count, double keep) {
  const float scale = 1.0f / (float)keep;
  const uint64_t limit = (uint64_t)ceil(ldexp(keep, 53)), mask = ((uint64_t)1 << 53) - 1;
  uint32_t s[WORDS], drawn[WORDS + 2];
  int64_t carried = 0; /* one word, where an odd number of them was left */
  int32_t left = state->left, next = (int32_t)state->next;
  for (int k = 0; k < WORDS; k++) s[k] = (uint32_t)state->words[k];
  while (count) {
    if (left == 1) {
      renew(s);
      left = WORDS + 1;
      next = 0;
    }
    const int64_t wanted = 2 * count - carried, some = wanted < left - 1 ? wanted : left - 1;
    for (int64_t k = 0; k < some; k++) drawn[carried + k] = tempered(s[next + k]);
    left -= (int32_t)some;
    next += (int32_t)some;
    const int64_t pairs = (carried + some) / 2;
    for (int64_t k = 0; k < pairs; k++) {
      const uint64_t number = (((uint64_t)drawn[2 * k] << 32) | drawn[2 * k + 1]) & mask;
      out[k] = number < limit ? scale : 0.0f;
    }
    out += pairs;
    count -= pairs;
    if ((carried + some) % 2) drawn[0] = drawn[carried + some - 1];
    carried = (carried + some) % 2;
  }
  state->left = left;
  state->next = (uint64_t)next;
  for (int k = 0; k < WORDS; k++) state->words[k] = s[k];
}
