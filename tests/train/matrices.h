// What tests of PowerSGD exchange: matrices of a few shapes, and what is not compressed.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "compression_sides.h"
#include "dtrain/comm/codecs.h"
#include "model/flat_parameters.h"

namespace dtrain::train {

// Shapes that other parameters stand between, odd sizes, a convolution's kernel, a matrix with few rows, vectors, and a
// second type.
struct MatricesImpl final : torch::nn::Module {
  MatricesImpl() {
    for (const auto& [name, sizes] :
         std::vector<std::pair<std::string, std::vector<std::int64_t>>>{{"wide1", {24, 31}},
                                                                        {"bias1", {24}},
                                                                        {"wide2", {24, 31}},
                                                                        {"high1", {31, 24}},
                                                                        {"wide3", {24, 31}},
                                                                        {"thin", {3, 500}},
                                                                        {"square", {37, 37}},
                                                                        {"high2", {31, 24}},
                                                                        {"long", {257}},
                                                                        {"kernel", {17, 5, 3}},
                                                                        {"wide4", {24, 31}},
                                                                        {"one", {}}}) {
      register_parameter(name, torch::zeros(sizes));
    }
    register_parameter("double", torch::zeros({30, 30}, at::kDouble));
  }
};
TORCH_MODULE(Matrices);

// Compresses "wide", "high" and "square". "thin" has fewer rows than this rank.
inline const comm::PowerSgd kPowerSgd{.rank = 5, .warmup_steps = 0};

inline CompressorOptions power_sgd_options(const comm::PowerSgd& settings = kPowerSgd) {
  return {settings, 5, 0, 0, "gradient compression", "a.key"};
}

// Values of this rank and step that have a part in common with those of other ranks and steps.
inline at::Tensor random_gradient(const FlatParameters::Parameter& parameter, std::size_t index, int rank, int step) {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  auto common = at::detail::createCPUGenerator(1 + index);
  auto own = at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 * (step + 1) + 100 * rank) + index);
  const auto sizes = parameter.gradient.sizes();
  return torch::randn(sizes, common, options)
      .add_(torch::randn(sizes, own, options))
      .to(parameter.gradient.scalar_type());
}

inline at::Tensor values_of(const Side& side, const FlatParameters::Parameter& parameter) {
  return side.flats[parameter.group].narrow(0, parameter.offset, parameter.gradient.numel());
}

inline void fill_random(const Side& side, const FlatParameters& parameters, int rank, int step) {
  const auto all = parameters.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    values_of(side, all[i]).copy_(random_gradient(all[i], i, rank, step).view({-1}));
  }
}

// Returns the bits of all values.
inline std::string bits_of(const Side& side) {
  std::string bits;
  for (const at::Tensor& flat : side.flats) {
    const at::Tensor values = flat.cpu();
    bits.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  }
  return bits;
}

}  // namespace dtrain::train
