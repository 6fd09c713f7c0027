// Counts the FLOPs of forward and backward with OperatorCounter and prints them as JSON: of every TorchScript module
// FOLDER/*.pt, whose forward() takes nothing and returns a loss, three times each, and of a few models written here.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>

#include <torch/script.h>
#include <torch/torch.h>

#include <ATen/autocast_mode.h>

#include "dtrain/base/json.h"
#include "tracing/flop_counts.h"

namespace {

namespace fs = std::filesystem;
using dtrain::Json;
using dtrain::train::OperatorCounter;

// Of one forward and backward; the types in which they are made.
Json counted(const std::function<torch::Tensor()>& loss) {
  OperatorCounter counter(/*timed=*/true);
  {
    const OperatorCounter::Scope scope(counter);
    loss().backward();
  }
  std::int64_t flops = 0;
  double seconds = 0;
  Json types = Json::object(), bytes = Json::object();
  for (const auto& one : counter.take()) {
    flops += one.flops;
    seconds += *one.seconds;
    if (one.flops > 0) types[one.dtype] = types.value(one.dtype, std::int64_t{0}) + one.flops;
    bytes[one.name] = bytes.value(one.name, std::int64_t{0}) + one.bytes;
  }
  return {{"flops", flops}, {"types", types}, {"bytes", bytes}, {"timed", seconds > 0}};
}

struct EagerNet : torch::nn::Module {
  EagerNet() {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1).stride(2)));
    grouped = register_module("grouped", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3).groups(4)));
    up = register_module("up", torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(16, 4, 2).stride(2)));
    last = register_module("last", torch::nn::Linear(4, 5));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(first(x));
    x = up(torch::relu(grouped(x)));
    return last(x.mean({2, 3})).pow(2).sum();
  }
  torch::nn::Conv2d first{nullptr}, grouped{nullptr};
  torch::nn::ConvTranspose2d up{nullptr};
  torch::nn::Linear last{nullptr};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  Json all = Json::object();
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(argv[1])) {
    if (entry.path().extension() == ".pt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    torch::jit::Module module = torch::jit::load(file.string());
    Json passes = Json::array();
    for (int i = 0; i < 3; ++i) passes.push_back(counted([&] { return module.forward({}).toTensor(); }));
    all["script"][file.stem().string()] = std::move(passes);
  }

  EagerNet net;
  const torch::Tensor images = torch::randn({2, 3, 12, 12});
  all["eager"]["convolutions"] = counted([&] { return net.forward(images); });
  torch::nn::Linear linear(16, 24);
  const torch::Tensor rows = torch::randn({8, 16});
  all["eager"]["linear"] = counted([&] { return linear(rows).pow(2).sum(); });
  all["eager"]["autocast"] = counted([&] {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const torch::Tensor loss = torch::mm(linear(rows).to(torch::kFloat), torch::randn({24, 4})).to(at::kFloat).sum();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    return loss;
  });
  // Bytes: read 8 x 16 floats, write as many; a view moves nothing.
  const torch::Tensor leaf = torch::randn({8, 16}).requires_grad_();
  all["eager"]["bytes"] = counted([&] { return torch::relu(leaf).view({16, 8}).t().sum(); });
  std::cout << all.dump() << "\n";
}
