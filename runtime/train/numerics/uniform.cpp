#include <cmath>
#include <limits>
#include <mutex>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/library.h>

#include "numerics/kernels.h"
#include "numerics/own_operators.h"

namespace dtrain::train {
namespace {

using OptionalGenerator = std::optional<at::Generator>;

constexpr std::int64_t kLeastNumbers = 1024;  // from here on the copies of the generator's state do not count
constexpr int kWords = at::MERSENNE_STATE_N;
static_assert(std::tuple_size_v<decltype(kernels::MersenneTwister::words)> == kWords);

const LibtorchKernel* libtorchs_uniform = nullptr;

// The generator's lock is held.
void fill(const at::Tensor& values, const kernels::UniformRange& range, at::CPUGeneratorImpl& generator) {
  at::mt19937 engine = generator.engine();
  at::mt19937_data_pod state = engine.data();
  kernels::MersenneTwister twister{.words = state.state_,
                                   .next = state.left_ == 1 ? kWords : static_cast<std::size_t>(state.next_)};
  kernels::uniform(twister, range, values.mutable_data_ptr<float>(), static_cast<std::size_t>(values.numel()));
  state.state_ = twister.words;
  state.next_ = static_cast<std::uint32_t>(twister.next);
  state.left_ = kWords + 1 - static_cast<int>(twister.next);
  engine.set_data(state);
  generator.set_engine(engine);
}

at::Tensor& libtorchs(c10::DispatchKeySet keys, at::Tensor& values, double from, double to,
                      const OptionalGenerator& generator) {
  libtorchs_uniform->call(keys, values, from, to, generator);
  return values;
}

// Returns how libtorch's kernel for this CPU rounds; nothing: dtrain's kernel gives other bits than libtorch's.
std::optional<bool> rounds_once(c10::DispatchKeySet keys) {
  constexpr std::uint64_t kSeed = 18;
  constexpr std::int64_t kCompared = 3 * kWords + 7;
  constexpr double kFrom = -0.0123, kTo = 0.0456;
  at::Tensor theirs = at::empty({kCompared}, at::kFloat);
  libtorchs(keys, theirs, kFrom, kTo, at::detail::createCPUGenerator(kSeed));
  for (const bool fused : {true, false}) {
    at::Tensor ours = at::empty({kCompared}, at::kFloat);
    at::Generator generator = at::detail::createCPUGenerator(kSeed);
    fill(ours, {static_cast<float>(kFrom), static_cast<float>(kTo), fused}, *generator.get<at::CPUGeneratorImpl>());
    if (at::equal(ours, theirs)) return fused;
  }
  return std::nullopt;
}

bool is_known(const at::Tensor& values, double from, double to) {
  const bool in_graph = at::GradMode::is_enabled() && values.requires_grad();
  return values.scalar_type() == at::kFloat && values.layout() == at::kStrided && values.is_contiguous() &&
         values.numel() >= kLeastNumbers && !in_graph && !values.is_inference() && is_plain(values) &&
         std::isfinite(from) && std::isfinite(to) && from <= to && to - from <= std::numeric_limits<float>::max();
}

at::Tensor& uniform(c10::DispatchKeySet keys, at::Tensor& values, double from, double to, OptionalGenerator asked) {
  if (!is_known(values, from, to)) return libtorchs(keys, values, from, to, asked);
  static const std::optional<bool> fused = rounds_once(keys);
  if (!fused) return libtorchs(keys, values, from, to, asked);
  auto* const generator =
      at::get_generator_or_default<at::CPUGeneratorImpl>(asked, at::detail::getDefaultCPUGenerator());
  {
    const std::lock_guard lock(generator->mutex_);
    fill(values, {static_cast<float>(from), static_cast<float>(to), *fused}, *generator);
  }
  values.unsafeGetTensorImpl()->bump_version();
  return values;
}

}  // namespace

void add_uniform(torch::Library& aten) {
  libtorchs_uniform = new LibtorchKernel("aten::uniform_");  // never freed
  aten.impl("uniform_", TORCH_FN(uniform));
}

}  // namespace dtrain::train
