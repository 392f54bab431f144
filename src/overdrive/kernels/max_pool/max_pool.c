/* The largest of 2 x 2 elements in steps of 2, and its backward pass: torch's own choices, bit for bit.

   Of equal elements the first in reading order is chosen, of several NaN the last; -0.0 is no smaller than 0.0. An
   element's gradient is 0.0 plus what the window hands to it, so that -0.0 comes out as 0.0.

   Images are n x h x w x c, channels innermost; images with channels outermost are n * channels of them, with c = 1.
   `which` says for each result which of its four elements was chosen. Every element of the results is written. */

#include <stdint.h>
#include <string.h>

#define LANES 16 /* elements at a time: one or two vector registers; a fixed number is what compilers vectorise */
#define FEW 4    /* the same for narrow images */
#define WORTH_THREADS 32768 /* elements of the result, from which on more than one thread works: torch's own limit */

typedef uint16_t bfloat;
typedef int64_t size;

static inline float up_float(float v) { return v; }
static inline float up_bfloat(bfloat v) { uint32_t bits = (uint32_t)v << 16; float f; memcpy(&f, &bits, 4); return f; }
static inline float down_float(float v) { return v; }
static inline bfloat down_bfloat(float v) { uint32_t bits; memcpy(&bits, &v, 4); return (bfloat)(bits >> 16); }

#define TAKE(value, number) \
  f = (value); \
  k = (f > best || f != f) ? (number) : k; \
  best = (f > best || f != f) ? f : best

/* `one`: from an element to its right neighbour; `step`: from a window to the next that is done here. */
#define KERNELS(T, BITS) \
static inline void choose_##T(const T *restrict p, const T *restrict q, size one, size step, size lanes, \
                              T *restrict out, uint8_t *restrict which) { \
  float largest[LANES]; int32_t at[LANES]; \
  for (size i = 0; i < lanes; i++) { \
    float f, best = up_##T(p[i * step]); int32_t k = 0; \
    TAKE(up_##T(p[i * step + one]), 1); \
    TAKE(up_##T(q[i * step]), 2); \
    TAKE(up_##T(q[i * step + one]), 3); \
    largest[i] = best; at[i] = k; \
  } \
  for (size i = 0; i < lanes; i++) out[i] = down_##T(largest[i]); \
  for (size i = 0; i < lanes; i++) which[i] = (uint8_t)at[i]; \
} \
static inline void spread_##T(T *restrict top, T *restrict bottom, size one, size step, size lanes, \
                              const T *restrict gradient, const uint8_t *restrict which) { \
  BITS *restrict p = (BITS *)top, *restrict q = (BITS *)bottom; \
  BITS v[LANES], at[LANES]; T given[LANES]; \
  for (size i = 0; i < lanes; i++) at[i] = which[i]; \
  for (size i = 0; i < lanes; i++) given[i] = down_##T(up_##T(gradient[i]) + 0.0f); \
  memcpy(v, given, sizeof(v)); \
  if (step == 1) { \
    for (size i = 0; i < lanes; i++) p[i] = v[i] & (BITS)-(at[i] == 0); \
    for (size i = 0; i < lanes; i++) p[i + one] = v[i] & (BITS)-(at[i] == 1); \
    for (size i = 0; i < lanes; i++) q[i] = v[i] & (BITS)-(at[i] == 2); \
    for (size i = 0; i < lanes; i++) q[i + one] = v[i] & (BITS)-(at[i] == 3); \
  } else { \
    for (size i = 0; i < lanes; i++) { \
      p[2 * i] = v[i] & (BITS)-(at[i] == 0); p[2 * i + 1] = v[i] & (BITS)-(at[i] == 1); \
    } \
    for (size i = 0; i < lanes; i++) { \
      q[2 * i] = v[i] & (BITS)-(at[i] == 2); q[2 * i + 1] = v[i] & (BITS)-(at[i] == 3); \
    } \
  } \
} \
/* A row of windows: blocks of LANES, then of FEW, the last of which may begin within the one before. */ \
static void choose_row_##T(const T *p, const T *q, size ow, size c, T *out, uint8_t *which) { \
  if (c == 1) { \
    size i = 0; \
    for (; i + LANES <= ow; i += LANES) choose_##T(p + 2 * i, q + 2 * i, 1, 2, LANES, out + i, which + i); \
    if (i < ow && ow >= LANES) { \
      i = ow - LANES; choose_##T(p + 2 * i, q + 2 * i, 1, 2, LANES, out + i, which + i); i = ow; \
    } \
    for (; i + FEW <= ow; i += FEW) choose_##T(p + 2 * i, q + 2 * i, 1, 2, FEW, out + i, which + i); \
    if (i < ow && ow >= FEW) { \
      i = ow - FEW; choose_##T(p + 2 * i, q + 2 * i, 1, 2, FEW, out + i, which + i); i = ow; \
    } \
    for (; i < ow; i++) choose_##T(p + 2 * i, q + 2 * i, 1, 2, 1, out + i, which + i); \
    return; \
  } \
  for (size col = 0; col < ow; col++, p += 2 * c, q += 2 * c, out += c, which += c) { \
    size i = 0; \
    for (; i + LANES <= c; i += LANES) choose_##T(p + i, q + i, c, 1, LANES, out + i, which + i); \
    for (; i + FEW <= c; i += FEW) choose_##T(p + i, q + i, c, 1, FEW, out + i, which + i); \
    for (; i < c; i++) choose_##T(p + i, q + i, c, 1, 1, out + i, which + i); \
  } \
} \
static void spread_row_##T(T *p, T *q, size ow, size c, const T *gradient, const uint8_t *which) { \
  if (c == 1) { \
    size i = 0; \
    for (; i + LANES <= ow; i += LANES) spread_##T(p + 2 * i, q + 2 * i, 1, 2, LANES, gradient + i, which + i); \
    if (i < ow && ow >= LANES) { \
      i = ow - LANES; spread_##T(p + 2 * i, q + 2 * i, 1, 2, LANES, gradient + i, which + i); i = ow; \
    } \
    for (; i + FEW <= ow; i += FEW) spread_##T(p + 2 * i, q + 2 * i, 1, 2, FEW, gradient + i, which + i); \
    if (i < ow && ow >= FEW) { \
      i = ow - FEW; spread_##T(p + 2 * i, q + 2 * i, 1, 2, FEW, gradient + i, which + i); i = ow; \
    } \
    for (; i < ow; i++) spread_##T(p + 2 * i, q + 2 * i, 1, 2, 1, gradient + i, which + i); \
    return; \
  } \
  for (size col = 0; col < ow; col++, p += 2 * c, q += 2 * c, gradient += c, which += c) { \
    size i = 0; \
    for (; i + LANES <= c; i += LANES) spread_##T(p + i, q + i, c, 1, LANES, gradient + i, which + i); \
    for (; i + FEW <= c; i += FEW) spread_##T(p + i, q + i, c, 1, FEW, gradient + i, which + i); \
    for (; i < c; i++) spread_##T(p + i, q + i, c, 1, 1, gradient + i, which + i); \
  } \
} \
void forward_##T(const T *x, T *out, uint8_t *which, size n, size h, size w, size c) { \
  const size oh = h / 2, ow = w / 2; \
  _Pragma("omp parallel for schedule(static) if (n * oh * ow * c >= WORTH_THREADS)") \
  for (size row = 0; row < n * oh; row++) { \
    const T *p = x + ((row / oh) * h + (row % oh) * 2) * w * c; \
    choose_row_##T(p, p + w * c, ow, c, out + row * ow * c, which + row * ow * c); \
  } \
} \
void backward_##T(const T *gradient, const uint8_t *which, T *to, size n, size h, size w, size c) { \
  const size oh = h / 2, ow = w / 2; \
  _Pragma("omp parallel for schedule(static) if (n * oh * ow * c >= WORTH_THREADS)") \
  for (size row = 0; row < n * oh; row++) { \
    T *p = to + ((row / oh) * h + (row % oh) * 2) * w * c; \
    spread_row_##T(p, p + w * c, ow, c, gradient + row * ow * c, which + row * ow * c); \
    if (w % 2) { \
      memset(p + (w - 1) * c, 0, c * sizeof(T)); \
      memset(p + (2 * w - 1) * c, 0, c * sizeof(T)); \
    } \
    if (h % 2 && row % oh == oh - 1) memset(p + 2 * w * c, 0, w * c * sizeof(T)); \
  } \
}

KERNELS(float, uint32_t)
KERNELS(bfloat, uint16_t)
