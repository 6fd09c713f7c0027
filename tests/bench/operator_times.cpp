// What operators of libtorch take at best on this machine, for the roofline of bench_compute: products of matrices and
// convolutions of given types and shapes, called again and again with inputs that stay in the cache where they fit.
//
//   operator_times FILE THREADS
//
// FILE: a JSON array of {"name", "dtype", "shapes"}, as `dtrain analyze --json` has them under roofline.operators.
// Prints a JSON array with the seconds of a call for each, null for an operator that is not measured. A product takes
// the fastest layout of its operands, a convolution the faster memory format. The stride and the padding of a
// convolution follow from its shapes.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <optional>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "numerics/matmul_path.h"

namespace {

using namespace dtrain;
using Shape = std::vector<std::int64_t>;
using Shapes = std::vector<Shape>;

// The shortest of several calls. The first one prepares what libtorch keeps for a shape.
template <class Call>
double fastest(const Call& call) {
  constexpr double kEnough = 0.06;
  constexpr int kLeast = 4;
  const SystemClock clock;
  call();
  double best = 1e9;
  double all = 0;
  for (int i = 0; i < kLeast || (all < kEnough && i < 1000); ++i) {
    const Nanoseconds begin = clock.monotonic();
    call();
    const double seconds = std::chrono::duration<double>(clock.monotonic() - begin).count();
    best = std::min(best, seconds);
    all += seconds;
  }
  return best;
}

torch::Tensor values(const Shape& shape, at::ScalarType type) {
  return torch::randn(shape).to(type);
}

// The same values with the last two dimensions the other way round in memory.
torch::Tensor transposed(const torch::Tensor& matrix) {
  return matrix.transpose(-1, -2).contiguous().transpose(-1, -2);
}

double time_product(const Shape& left, const Shape& right, at::ScalarType type) {
  double best = 1e9;
  const torch::Tensor a = values(left, type), b = values(right, type);
  for (const torch::Tensor& first : {a, transposed(a)}) {
    for (const torch::Tensor& second : {b, transposed(b)}) {
      best = std::min(best, fastest([&] { return at::matmul(first, second); }));
    }
  }
  return best;
}

struct Convolution {
  std::int64_t stride = 1, padding = 0;
};

// Of a square kernel: the padding that keeps the size if it fits, else any other.
std::optional<Convolution> convolution_of(const Shape& output, const Shape& input, const Shape& weight) {
  const std::int64_t kernel = weight[2];
  for (std::int64_t padding = kernel / 2; padding >= 0; --padding) {
    for (std::int64_t stride = 1; stride <= 8; ++stride) {
      if ((input[2] + 2 * padding - kernel) / stride + 1 == output[2]) return Convolution{stride, padding};
    }
  }
  return std::nullopt;
}

std::optional<double> time_convolution(const Shapes& shapes, const Shapes& all_outputs, bool backward,
                                       at::ScalarType type) {
  const Shape& input = shapes[backward ? 1 : 0];
  const Shape& weight = shapes[backward ? 2 : 1];
  if (input.size() != 4 || weight.size() != 4 || weight[2] != weight[3] || input[1] != weight[1]) return std::nullopt;
  const Shape& output = backward ? shapes[0] : all_outputs.front();
  const auto found = convolution_of(output, input, weight);
  if (!found) return std::nullopt;
  const Shape stride(2, found->stride), padding(2, found->padding), ones{1, 1}, zeros{0, 0};
  const bool of_images = input[1] <= 4;  // the gradient of what the data set gave is not wanted
  double best = 1e9;
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    const torch::Tensor x = values(input, type).contiguous(format), w = values(weight, type).contiguous(format);
    const torch::Tensor gradient = values(output, type).contiguous(format);
    best = std::min(best, fastest([&] {
                      if (!backward) {
                        at::convolution(x, w, {}, stride, padding, ones, false, zeros, 1);
                        return;
                      }
                      at::convolution_backward(gradient, x, w, {}, stride, padding, ones, false, zeros, 1,
                                               {!of_images, true, false});
                    }));
  }
  return best;
}

// Of the convolution with this input and this weight: what its backward got as gradient.
Shapes outputs_of(const Json& operators, const Json& shapes) {
  for (const Json& one : operators) {
    if (one.at("name") != "aten::convolution_backward") continue;
    const Json& other = one.at("shapes");
    if (other.at(1) == shapes.at(0) && other.at(2) == shapes.at(1)) return {other.at(0).get<Shape>()};
  }
  return {};
}

std::optional<double> time_operator(const Json& operators, const Json& one) {
  const auto name = one.at("name").get<std::string>();
  const auto dtype = one.at("dtype").get<std::string>();
  if (dtype != "float32" && dtype != "bfloat16") return std::nullopt;
  const auto type = dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  const auto shapes = one.at("shapes").get<Shapes>();
  if (name == "aten::mm" || name == "aten::bmm") return time_product(shapes[0], shapes[1], type);
  if (name == "aten::addmm" || name == "aten::baddbmm") return time_product(shapes[1], shapes[2], type);
  if (name == "aten::convolution_backward") return time_convolution(shapes, {}, true, type);
  if (name != "aten::convolution") return std::nullopt;
  const Shapes outputs = outputs_of(operators, one.at("shapes"));
  if (outputs.empty()) return std::nullopt;
  return time_convolution(shapes, outputs, false, type);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) throw Error("usage: operator_times FILE THREADS");
  const Json operators = Json::parse(read_file(argv[1]));
  at::set_num_threads(std::atoi(argv[2]));
  train::choose_matmul(config::Matmul::kAuto);
  const c10::InferenceMode inference;
  Json times = Json::array();
  for (const Json& one : operators) {
    const std::optional<double> seconds = time_operator(operators, one);
    times.push_back(seconds ? Json(*seconds) : Json());
  }
  std::cout << to_line(times) << "\n";
  return 0;
} catch (const std::exception& error) {
  std::cerr << "operator_times: " << dtrain::describe(error) << "\n";
  return 1;
}
