/* The largest of 3 x 3 floats in steps of 1 or 2, and where it is: torch's own choices, bit for bit.

   Of equal numbers the first in reading order is chosen, of several NaN the last. torch compares one number after
   another, and takes a branch for each; here eight windows of a row are compared at once. Each plane (an image's
   channel) is copied into a frame of -infinity, which is never larger than what was chosen before: a window begins
   with -infinity at its first place within the plane, as torch's does. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t size;
typedef float floats __attribute__((vector_size(32)));
typedef int32_t places __attribute__((vector_size(32)));

#define LANES 8
#define WORTH_THREADS 32768 /* elements of the result, from which on more than one thread works: torch's own limit */

#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (places){__VA_ARGS__})
#endif

static inline floats every_1(const float *p) { floats x; memcpy(&x, p, sizeof(x)); return x; }
static inline floats every_2(const float *p) {
  return PICK(every_1(p), every_1(p + LANES), 0, 2, 4, 6, 8, 10, 12, 14);
}

static inline places all(size number) { return (places){0} + (int32_t)number; }

/* `rows`: the frame where the windows of this row begin, `wide` numbers to the next; `base`: the place in the plane,
   of `w` numbers a row, where the first window begins; `above`: rows of the windows that lie before the plane. */
#define KERNELS(STEP) \
static void row_##STEP(const float *rows, size wide, size w, size ow, size base, size above, size pad, float *out, \
                       int64_t *which) { \
  const places lanes = {0, STEP, 2 * STEP, 3 * STEP, 4 * STEP, 5 * STEP, 6 * STEP, 7 * STEP}; \
  for (size i = 0; i < ow; i += LANES) { \
    const places left = all(pad - i * STEP) - lanes; /* columns that lie before the plane, where there are any */ \
    floats best = (floats){0} - INFINITY; \
    places at = all(above * w) + (left & (left > 0)); \
    for (size r = 0; r < 3; r++) \
      for (size c = 0; c < 3; c++) { \
        const floats x = every_##STEP(rows + r * wide + c + i * STEP); \
        const places better = (x > best) | (x != x); \
        at = (all(r * w + c) & better) | (at & ~better); \
        best = (floats)(((places)x & better) | ((places)best & ~better)); \
      } \
    const size n = ow - i < LANES ? ow - i : LANES; \
    at += lanes; \
    memcpy(out + i, &best, n * sizeof(float)); \
    for (size k = 0; k < n; k++) which[i + k] = base + i * STEP + at[k]; \
  } \
} \
/* Returns: whether there was no memory. */ \
int windows_##STEP(const float *x, float *out, int64_t *which, size planes, size h, size w, size oh, size ow, \
                   size pad) { \
  const size read = (ow + LANES) * STEP + 2 * LANES, wide = read > w + pad ? read : w + pad; \
  const size needed = (oh - 1) * STEP + 3, high = needed > h + pad ? needed : h + pad; \
  int failed = 0; \
  _Pragma("omp parallel reduction(|:failed) if (planes * oh * ow >= WORTH_THREADS)") \
  { \
    float *frame = malloc(high * wide * sizeof(float)); \
    failed = !frame; \
    for (size k = 0; frame && k < high * wide; k++) frame[k] = -INFINITY; \
    _Pragma("omp for schedule(static)") \
    for (size plane = 0; plane < planes; plane++) { \
      if (!frame) continue; \
      for (size r = 0; r < h; r++) \
        memcpy(frame + (r + pad) * wide + pad, x + (plane * h + r) * w, w * sizeof(float)); \
      for (size r = 0; r < oh; r++) { \
        const size above = pad - r * STEP > 0 ? pad - r * STEP : 0, to = (plane * oh + r) * ow; \
        row_##STEP(frame + r * STEP * wide, wide, w, ow, (r * STEP - pad) * w - pad, above, pad, out + to, which + to); \
      } \
    } \
    free(frame); \
  } \
  return failed; \
}

KERNELS(1)
KERNELS(2)
