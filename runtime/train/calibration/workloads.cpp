#include "calibration/workloads.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "calibration/rank_processes.h"
#include "dtrain/base/error.h"
#include "dtrain/host/cpu.h"
#include "numerics/parallel.h"

namespace dtrain::calibration {
namespace {

constexpr std::size_t kMegabyte = 1u << 20;
constexpr std::array kSizes{256, 512, 1024, 2048, 4096, 8192};  // sides of square matrices
constexpr std::size_t kMostSizes = 2;  // measured sizes: the largest. More take time and find nothing.
constexpr double kLongestCall = 0.02;  // seconds

// Floats in a separate mapping, filled by the threads that use them. Huge pages cause fewer page faults while the
// mapping is filled.
class Floats {
 public:
  Floats(std::size_t count, float value) : count_(count) {
    void* const memory = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw SystemError("cannot allocate memory to measure with", errno);
    ::madvise(memory, bytes(), MADV_HUGEPAGE);
    data_ = static_cast<float*>(memory);
    train::parallel_for(static_cast<std::int64_t>(count), 1,
                        [&](std::int64_t begin, std::int64_t end) { std::fill(data_ + begin, data_ + end, value); });
  }
  ~Floats() { ::munmap(data_, bytes()); }
  Floats& operator=(Floats&&) = delete;
  float* data() const { return data_; }
  std::size_t count() const { return count_; }

 private:
  std::size_t bytes() const { return count_ * sizeof(float); }
  std::size_t count_;
  float* data_ = nullptr;
};

// Computes a = b + 3 c for whole cache lines. Stores bypass the caches, so that memory is written but not read.
void triad(float* a, const float* b, const float* c, std::size_t count) {
#ifdef __SSE2__
  const __m128 three = _mm_set1_ps(3);
  for (std::size_t i = 0; i < count; i += 4) {
    _mm_stream_ps(a + i, _mm_add_ps(_mm_load_ps(b + i), _mm_mul_ps(three, _mm_load_ps(c + i))));
  }
  _mm_sfence();
#else  // processors of Arm detect writes of whole lines
  using Vector [[gnu::vector_size(16)]] = float;
  for (std::size_t i = 0; i < count; i += 4) {
    Vector left, right;
    std::memcpy(&left, b + i, sizeof left);
    std::memcpy(&right, c + i, sizeof right);
    left += 3 * right;
    std::memcpy(a + i, &left, sizeof left);
  }
#endif
}

Workload memory_workload(int ranks) {
  constexpr std::size_t kLine = 16;  // floats
  // The three arrays together are several times as large as the cache that the ranks share.
  const std::size_t cached = host::last_level_cache() * 3 / 2 / static_cast<std::size_t>(ranks);
  const std::size_t bytes = std::clamp(cached, 32 * kMegabyte, 256 * kMegabyte) / kMegabyte * kMegabyte;
  const std::size_t count = bytes / sizeof(float);
  const auto a = std::make_shared<Floats>(count, 0.0F);
  const auto b = std::make_shared<Floats>(count, 1.0F);
  const auto c = std::make_shared<Floats>(count, 2.0F);
  return {kMemory, 3.0 * static_cast<double>(bytes), [a, b, c] {
            const auto lines = static_cast<std::int64_t>(a->count() / kLine);
            train::parallel_for(lines, 1, [&](std::int64_t begin, std::int64_t end) {
              const auto first = static_cast<std::size_t>(begin) * kLine;
              triad(a->data() + first, b->data() + first, c->data() + first,
                    static_cast<std::size_t>(end - begin) * kLine);
            });
          }};
}

// Computes this rank's part of an all-reduce like dtrain's shared-memory backend: the mean of all ranks' parts, in rank
// order, is written to all of them, in blocks that stay in the cache.
void reduce_block(const RankProcess& self, std::size_t first, std::size_t count) {
  constexpr std::size_t kBlock = 2048;
  std::array<float, kBlock> sum{};
  const float scale = 1.0F / static_cast<float>(self.ranks());
  for (std::size_t at = first; at < first + count; at += kBlock) {
    const std::size_t size = std::min(kBlock, first + count - at);
    std::fill_n(sum.begin(), size, 0.0F);
    for (int rank = 0; rank < self.ranks(); ++rank) {
      const auto* const from = reinterpret_cast<const float*>(self.shared_of(rank)) + at;
      for (std::size_t i = 0; i < size; ++i) sum[i] += scale * from[i];
    }
    for (int rank = 0; rank < self.ranks(); ++rank) {
      std::copy_n(sum.begin(), size, reinterpret_cast<float*>(self.shared_of(rank)) + at);
    }
  }
}

Workload all_reduce_workload(const RankProcess& self) {
  const std::size_t bytes = all_reduce_bytes(self.ranks());
  const std::size_t part = bytes / sizeof(float) / static_cast<std::size_t>(self.ranks());
  const std::size_t first = part * static_cast<std::size_t>(self.rank());
  return {kAllReduce, static_cast<double>(bytes), [&self, first, part] { reduce_block(self, first, part); }};
}

double seconds_of(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Returns the largest value of all ranks. Collective.
double slowest(RankProcess& self, double value) {
  self.barrier();
  self.values()[0] = value;
  self.barrier();
  for (int rank = 0; rank < self.ranks(); ++rank) value = std::max(value, self.values_of(rank)[0]);
  self.barrier();
  return value;
}

Workload matmul_workload(at::ScalarType type, Figure figure, int size) {
  const at::Tensor a = at::rand({size, size}).to(type);
  const at::Tensor b = at::rand({size, size}).to(type);
  at::Tensor c = at::empty({size, size}, type);
  return {figure, 2.0 * std::pow(size, 3), [a, b, c]() mutable { at::mm_out(c, a, b); }};
}

void add_matmuls(RankProcess& self, at::ScalarType type, Figure figure, std::vector<Workload>& all) {
  std::vector<Workload> found;
  for (const int size : kSizes) {
    Workload workload = matmul_workload(type, figure, size);
    workload.run();  // warm-up: threads, code for this processor
    const double seconds = slowest(self, seconds_of(workload.run));
    found.push_back(std::move(workload));
    if (seconds * 8 > kLongestCall) break;  // the next size has eight times the work
  }
  const std::size_t left_out = found.size() - std::min(found.size(), kMostSizes);
  all.insert(all.end(), std::make_move_iterator(found.begin() + static_cast<std::ptrdiff_t>(left_out)),
             std::make_move_iterator(found.end()));
}

// Runs forward and backward of a 3x3 convolution, 64 to 64 channels, on images of 28x28 in channels_last.
Workload convolution_workload(at::ScalarType type, Figure figure, int batch) {
  constexpr int kChannels = 64;
  constexpr int kSide = 28;
  const auto make = [&](at::IntArrayRef sizes) {
    return at::rand(sizes).to(type).contiguous(at::MemoryFormat::ChannelsLast);
  };
  const at::Tensor x = make({batch, kChannels, kSide, kSide});
  const at::Tensor w = make({kChannels, kChannels, 3, 3});
  const at::Tensor gradient = make({batch, kChannels, kSide, kSide});
  const double forward = 2.0 * batch * kSide * kSide * kChannels * kChannels * 9;
  return {figure, 3 * forward, [x, w, gradient] {
            const std::array<std::int64_t, 2> one{1, 1};
            const std::array<std::int64_t, 2> zero{0, 0};
            at::convolution(x, w, {}, one, one, one, false, zero, 1);
            at::convolution_backward(gradient, x, w, c10::nullopt, one, one, one, false, zero, 1, {true, true, false});
          }};
}

void add_convolution(RankProcess& self, at::ScalarType type, Figure figure, std::vector<Workload>& all) {
  constexpr std::array kBatches{2, 16};
  std::optional<Workload> found;
  for (const int batch : kBatches) {
    Workload workload = convolution_workload(type, figure, batch * at::get_num_threads());
    workload.run();
    const double seconds = slowest(self, seconds_of(workload.run));
    found = std::move(workload);
    if (seconds * kBatches.back() / kBatches.front() > kLongestCall) break;
  }
  all.push_back(std::move(*found));
}

// True with AVX512-FP16 or AMX-FP16. Without them float16 is converted at every step, a hundred times slower.
bool multiplies_float16() {
#ifdef __x86_64__
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & (1u << 23)) != 0) return true;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 21)) != 0;
#else
  return false;
#endif
}

}  // namespace

std::size_t all_reduce_bytes(int ranks) {
  if (ranks < 2) return 0;
  const std::size_t cached = host::last_level_cache() * 2 / static_cast<std::size_t>(ranks);
  return std::clamp(cached, 16 * kMegabyte, 64 * kMegabyte) / kMegabyte * kMegabyte;
}

std::vector<Workload> float32_workloads(RankProcess& self) {
  std::vector<Workload> all;
  add_matmuls(self, at::kFloat, kMatmulFloat32, all);
  return all;
}

std::vector<Workload> all_workloads(RankProcess& self) {
  std::vector<Workload> all = float32_workloads(self);
  add_matmuls(self, at::kBFloat16, kMatmulBfloat16, all);
  if (multiplies_float16()) add_matmuls(self, at::kHalf, kMatmulFloat16, all);
  add_convolution(self, at::kFloat, kConvolutionFloat32, all);
  add_convolution(self, at::kBFloat16, kConvolutionBfloat16, all);
  all.push_back(memory_workload(self.ranks()));
  if (self.ranks() > 1) all.push_back(all_reduce_workload(self));
  return all;
}

}  // namespace dtrain::calibration
