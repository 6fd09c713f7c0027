#include "measure/computing_savings.h"

#include <algorithm>

#include "measure/limits.h"

namespace dtrain::analysis {
namespace {

constexpr std::int64_t kFewestChannels = 16;

bool is_convolution(const OperatorLimit& one) {
  return !one.format.empty();
}

// Casting reads four bytes of an element and writes two.
double casting_s(const Roofline& roofline, const OperatorLimit& one) {
  constexpr double kBytesOfByte = 1.5;
  if (!roofline.limits || !roofline.limits->memory_gb_s) return 0;
  return kBytesOfByte * static_cast<double>(one.bytes) / (*roofline.limits->memory_gb_s * kGiga);
}

// The weight is the tensor before the last or, in backward, the last: [out, in / groups, …].
bool has_few_channels(const OperatorLimit& one) {
  const bool backward = one.name.ends_with("_backward");
  const std::size_t place = backward ? 2 : 1;
  if (one.shapes.size() <= place || one.shapes[place].size() < 2) return true;
  return std::min(one.shapes[place][0], one.shapes[place][1]) < kFewestChannels;
}

}  // namespace

std::optional<double> limit_gflops_of(const Roofline& roofline, const OperatorLimit& one, const std::string& dtype) {
  if (!roofline.limits) return std::nullopt;
  const auto& convolutions = roofline.limits->convolution_gflops;
  if (const auto found = convolutions.find(dtype); is_convolution(one) && found != convolutions.end()) {
    return found->second;
  }
  return gflops_of(*roofline.limits, dtype);
}

std::optional<double> bf16_saving_s(const Roofline& roofline) {
  double saved_s = 0;
  bool any = false;
  for (const OperatorLimit& one : roofline.operators) {
    if (one.flops == 0 || one.dtype != "float32") continue;
    const auto wide = limit_gflops_of(roofline, one, "float32"), narrow = limit_gflops_of(roofline, one, "bfloat16");
    if (!wide || !narrow) return std::nullopt;
    any = true;
    saved_s += std::max(0.0, one.seconds * (1 - std::min(1.0, *wide / *narrow)) - casting_s(roofline, one));
  }
  return any ? std::optional(saved_s / static_cast<double>(roofline.samples)) : std::nullopt;
}

std::optional<double> channels_last_saving_s(const Roofline& roofline) {
  double saved_s = 0;
  bool any = false;
  for (const OperatorLimit& one : roofline.operators) {
    if (one.format != "contiguous" || one.flops == 0 || has_few_channels(one)) continue;
    if (!roofline.limits || !roofline.limits->convolution_gflops.contains(one.dtype)) return std::nullopt;
    any = true;
    const double then_s = static_cast<double>(one.flops) / (*limit_gflops_of(roofline, one, one.dtype) * kGiga);
    saved_s += std::max(0.0, one.seconds - then_s);
  }
  return any ? std::optional(saved_s / static_cast<double>(roofline.samples)) : std::nullopt;
}

}  // namespace dtrain::analysis
