// What dtrain-calibrate measures, by other means: a STREAM-like triad in plain C, and matrix products of oneDNN as the
// distribution packages it. One thread. Prints one line of JSON; limits.py compiles and starts it.
#include <dnnl.h>
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { kRounds = 4, kRuns = 9, kCount = 16 << 20 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double median(double* values) {
  qsort(values, kRuns, sizeof *values, ascending);
  return values[kRuns / 2];
}

static float* floats(size_t count, float value) {
  float* const data = aligned_alloc(64, count * sizeof(float));
  if (!data) abort();
  for (size_t i = 0; i < count; ++i) data[i] = value;
  return data;
}

// Seconds of a = b + 3 c, with ordinary stores or with such that go past the caches.
static double triad(float* a, const float* b, const float* c, int past_the_caches) {
  double times[kRuns];
  for (int run = 0; run < kRuns; ++run) {
    const double start = now();
    if (past_the_caches) {
      for (size_t i = 0; i < kCount; i += 8) {
        const __m256 sum =
            _mm256_add_ps(_mm256_load_ps(b + i), _mm256_mul_ps(_mm256_set1_ps(3), _mm256_load_ps(c + i)));
        _mm256_stream_ps(a + i, sum);
      }
      _mm_sfence();
    } else {
      for (size_t i = 0; i < kCount; ++i) a[i] = b[i] + 3 * c[i];
    }
    times[run] = now() - start;
  }
  return median(times);
}

static void check(dnnl_status_t status) {
  if (status != dnnl_success) abort();
}

// GFLOP/s of a product of square matrices; 0: oneDNN has none for this type here.
static double product(dnnl_data_type_t type, int size) {
  dnnl_engine_t engine;
  dnnl_stream_t stream;
  check(dnnl_engine_create(&engine, dnnl_cpu, 0));
  check(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
  const dnnl_dims_t dims = {size, size};
  dnnl_memory_desc_t shape;
  check(dnnl_memory_desc_init_by_tag(&shape, 2, dims, type, dnnl_ab));
  dnnl_memory_t of[3];
  for (int i = 0; i < 3; ++i) {
    float* const data = floats((size_t)size * (size_t)size, 0);
    check(dnnl_memory_create(&of[i], &shape, engine, data));
  }
  dnnl_matmul_desc_t description;
  check(dnnl_matmul_desc_init(&description, &shape, &shape, NULL, &shape));
  dnnl_primitive_desc_t chosen;
  if (dnnl_primitive_desc_create(&chosen, &description, NULL, engine, NULL) != dnnl_success) return 0;
  dnnl_primitive_t primitive;
  check(dnnl_primitive_create(&primitive, chosen));
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, of[0]}, {DNNL_ARG_WEIGHTS, of[1]}, {DNNL_ARG_DST, of[2]}};
  double times[kRuns];
  for (int run = -1; run < kRuns; ++run) {
    const double start = now();
    check(dnnl_primitive_execute(primitive, stream, 3, arguments));
    check(dnnl_stream_wait(stream));
    if (run >= 0) times[run] = now() - start;
  }
  for (int i = 0; i < 3; ++i) {
    void* data = NULL;
    check(dnnl_memory_get_data_handle(of[i], &data));
    check(dnnl_memory_destroy(of[i]));
    free(data);
  }
  check(dnnl_primitive_destroy(primitive));
  check(dnnl_primitive_desc_destroy(chosen));
  check(dnnl_stream_destroy(stream));
  check(dnnl_engine_destroy(engine));
  return 2.0 * size * size * size / median(times) / 1e9;
}

static double larger(double a, double b) {
  return a > b ? a : b;
}

int main(void) {
  float* const a = floats(kCount, 0);
  float* const b = floats(kCount, 1);
  float* const c = floats(kCount, 2);
  const double bytes = 3.0 * kCount * sizeof(float);
  double past = 0, ordinary = 0, float32 = 0, bfloat16 = 0;
  for (int round = 0; round < kRounds; ++round) {  // the best one counts, as in dtrain-calibrate
    past = larger(past, bytes / triad(a, b, c, 1) / 1e9);
    // Ordinary stores read what they write: four arrays' worth of bytes move.
    ordinary = larger(ordinary, 4.0 / 3.0 * bytes / triad(a, b, c, 0) / 1e9);
    for (int size = 512; size <= 1024; size *= 2) {
      float32 = larger(float32, product(dnnl_f32, size));
      bfloat16 = larger(bfloat16, product(dnnl_bf16, size));
    }
  }
  printf("{\"memory_gb_s\": %.2f, \"memory_moved_gb_s\": %.2f, \"float32\": %.1f, \"bfloat16\": %.1f, \"sum\": %g}\n",
         past, ordinary, float32, bfloat16, (double)a[7]);
  return 0;
}
