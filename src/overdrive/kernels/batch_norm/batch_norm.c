/* Batch normalisation while training: torch's own sums, in its own order, eight channels beside each other.

   Images are images x channels x size, each plane of `size` floats in one piece. torch adds up a channel in double,
   number after number, so that each addition waits for the one before. Here a vector register holds the sums of eight
   channels: each of them is added up in the same order, and comes to the same in every bit.

     mean = sum(x) / n     squares = sum((x - mean)^2), each of them in float
     inverse = 1 / sqrt(squares / n + eps)     y = x * a + b, a = inverse * weight, b = bias - mean * a

   torch's compiler may have made one operation of a product and a sum, by what the processor has: `fused` says so. */

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef int64_t size;
typedef float floats __attribute__((vector_size(32)));
typedef double doubles __attribute__((vector_size(64)));
typedef int32_t places __attribute__((vector_size(32)));

#define LANES 8
#define WORTH_THREADS 32768 /* numbers, from which on more than one thread works: torch's own limit */

#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (places){__VA_ARGS__})
#endif

static inline doubles wide(floats x) { return __builtin_convertvector(x, doubles); }

/* Eight numbers of each of eight planes -> of each number, that of eight planes. */
static inline void turn(const float *const *planes, size at, floats *out) {
  floats r[LANES], s[LANES], t[LANES];
  for (int k = 0; k < LANES; k++) memcpy(r + k, planes[k] + at, sizeof(floats));
  for (int k = 0; k < LANES; k += 2) {
    s[k] = PICK(r[k], r[k + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    s[k + 1] = PICK(r[k], r[k + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int k = 0; k < LANES; k += 4) {
    t[k] = PICK(s[k], s[k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    t[k + 1] = PICK(s[k], s[k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    t[k + 2] = PICK(s[k + 1], s[k + 3], 0, 1, 8, 9, 4, 5, 12, 13);
    t[k + 3] = PICK(s[k + 1], s[k + 3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (int k = 0; k < 4; k++) {
    out[k] = PICK(t[k], t[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    out[k + 4] = PICK(t[k], t[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

static inline floats one_of_each(const float *const *planes, size at) {
  floats x;
  for (int k = 0; k < LANES; k++) x[k] = planes[k][at];
  return x;
}

static inline floats squared(floats x, floats mean) { const floats centred = x - mean; return centred * centred; }

static inline doubles add_up(const float *const *planes, size n, doubles sum) {
  size i = 0;
  for (; i + LANES <= n; i += LANES) {
    floats x[LANES];
    turn(planes, i, x);
    for (int k = 0; k < LANES; k++) sum += wide(x[k]);
  }
  for (; i < n; i++) sum += wide(one_of_each(planes, i));
  return sum;
}

static inline doubles add_squares(const float *const *planes, size n, floats mean, doubles sum) {
  size i = 0;
  for (; i + LANES <= n; i += LANES) {
    floats x[LANES];
    turn(planes, i, x);
    for (int k = 0; k < LANES; k++) sum += wide(squared(x[k], mean));
  }
  for (; i < n; i++) sum += wide(squared(one_of_each(planes, i), mean));
  return sum;
}

static inline float times_plus(float a, float b, float c, int fused) {
  return fused ? __builtin_fmaf(a, b, c) : a * b + c;
}

/* The normalisation of one channel. Two loops, so that compilers make vectors of both. */
static inline void normalise(const float *x, float *y, size images, size step, size n, float a, float b, int fused) {
  for (size i = 0; i < images; i++) {
    const float *restrict from = x + i * step;
    float *restrict to = y + i * step;
    if (fused)
      for (size k = 0; k < n; k++) to[k] = times_plus(from[k], a, b, 1);
    else
      for (size k = 0; k < n; k++) to[k] = times_plus(from[k], a, b, 0);
  }
}

/* `weight` and `bias` may be null. */
void forward(const float *x, const float *weight, const float *bias, float *y, float *mean, float *inverse,
             float *squares, size images, size channels, size n, size fused, double eps) {
  const size count = images * n, step = channels * n;
  _Pragma("omp parallel for schedule(static) if (count * channels >= WORTH_THREADS)")
  for (size first = 0; first < channels; first += LANES) {
    const size some = channels - first < LANES ? channels - first : LANES;
    const float *planes[LANES]; /* where fewer channels are left, the first of them fills the others' places */
    doubles sums = {0}, distances = {0};
    floats middle;
    for (size i = 0; i < images; i++) {
      for (size k = 0; k < LANES; k++) planes[k] = x + i * step + (first + (k < some ? k : 0)) * n;
      sums = add_up(planes, n, sums);
    }
    for (int k = 0; k < LANES; k++) middle[k] = (float)(sums[k] / (double)count);
    for (size i = 0; i < images; i++) {
      for (size k = 0; k < LANES; k++) planes[k] = x + i * step + (first + (k < some ? k : 0)) * n;
      distances = add_squares(planes, n, middle, distances);
    }
    for (size k = 0; k < some; k++) {
      const size c = first + k;
      const float variance = (squares[c] = (float)distances[k]) / (float)count;
      mean[c] = middle[k];
      inverse[c] = (float)(variance != 0 || eps != 0 ? 1 / sqrt((double)variance + eps) : 0);
      const float a = inverse[c] * (weight ? weight[c] : 1.0f);
      const float b = times_plus(-mean[c], a, bias ? bias[c] : 0.0f, (int)fused);
      normalise(x + c * n, y + c * n, images, step, n, a, b, (int)fused);
    }
  }
}

/* The running statistics, of `count` numbers a channel: the variance's new part in double, all else in float. */
void keep(float *running_mean, float *running_var, const float *mean, const float *squares, size channels, size count,
          float momentum) {
  for (size c = 0; c < channels; c++) {
    const double added = (double)momentum * (double)(squares[c] / (float)(count - 1));
    running_mean[c] = momentum * mean[c] + (1 - momentum) * running_mean[c];
    running_var[c] = (float)(added + (double)((1 - momentum) * running_var[c]));
  }
}
