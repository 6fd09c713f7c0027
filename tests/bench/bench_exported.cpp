// What a step of a model from a file of torch.export costs (runtime/train/exported): against the same model as
// TorchScript, written in C++, and in eager Python, one thread each, in turns.
//
//   bench_exported [--json] [--quick] [--models resnet18,gpt,bert]
//
// A step: forward, cross entropy, backward, and one fused AdamW over all parameters, on one batch. The contestants of a
// model take turns of a few steps; the first step of a turn does not count. BERT exists in Python alone. --quick: few
// turns. MODEL_ratio: the median step of the file over that of the faster one of TorchScript and C++ (goal: at most
// 1.02); MODEL_eager_ratio: over eager Python's (goal: at most 1).
#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>

#include <ATen/Parallel.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>

#include <dtrain/dtrain.h>

#include "compute_models.h"
#include "contestant.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "exported/exported_model.h"
#include "resnet18.h"

namespace {

using namespace dtrain;
using Forward = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

constexpr bench::GptSizes kGpt{.tokens = 4096, .length = 128, .layers = 6, .heads = 4, .width = 256};

// The same update for all.
class Adamw {
 public:
  explicit Adamw(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
    std::erase_if(parameters_, [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
    for (const at::Tensor& parameter : parameters_) {
      means_.push_back(at::zeros_like(parameter));
      squares_.push_back(at::zeros_like(parameter));
      steps_.push_back(at::zeros({}, at::kFloat));
    }
  }

  void step() {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> parameters, gradients, means, squares, steps;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!parameters_[i].grad().defined()) continue;
      steps_[i].add_(1);
      parameters.push_back(parameters_[i]);
      gradients.push_back(parameters_[i].grad());
      means.push_back(means_[i]);
      squares.push_back(squares_[i]);
      steps.push_back(steps_[i]);
    }
    at::_fused_adamw_(parameters, gradients, means, squares, {}, steps, 1e-3, 0.9, 0.999, 1e-2, 1e-8, false, false);
  }

  void clear() {
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  }

 private:
  std::vector<at::Tensor> parameters_, means_, squares_, steps_;
};

struct Stepper {
  Forward forward;
  std::shared_ptr<Adamw> optimizer;
  std::shared_ptr<void> owner{};
};

Stepper exported_stepper(const std::string& file) {
  const auto model = std::make_shared<exported::ExportedModel>(file);
  model->tree()->train();
  return {[model](const std::vector<at::Tensor>& inputs) { return model->forward(inputs).at(0); },
          std::make_shared<Adamw>(model->tree()->parameters()), model};
}

// As dtrain runs TorchScript: without its graph optimizer.
Stepper script_stepper(const std::string& file) {
  const auto script = std::make_shared<torch::jit::Module>(torch::jit::load(file));
  script->train();
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : script->parameters()) parameters.push_back(parameter);
  return {[script](const std::vector<at::Tensor>& inputs) {
            const torch::jit::GraphOptimizerEnabledGuard plain(false);
            return script->forward({inputs.begin(), inputs.end()}).toTensor();
          },
          std::make_shared<Adamw>(std::move(parameters)), script};
}

template <typename Model>
Stepper stepper_of(Model model) {
  model->train();
  return {[model](const std::vector<at::Tensor>& inputs) mutable { return model->forward(inputs.at(0)); },
          std::make_shared<Adamw>(model->parameters())};
}

double step_ms(Stepper& stepper, const std::vector<at::Tensor>& inputs, const at::Tensor& target) {
  const auto began = std::chrono::steady_clock::now();
  const at::Tensor scores = stepper.forward(inputs);
  const at::Tensor loss = at::cross_entropy_loss(scores.flatten(0, -2), target.flatten());
  stepper.optimizer->clear();
  loss.backward();
  stepper.optimizer->step();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
}

Json measure(const std::string& name, const std::filesystem::path& folder, bench::Contestant& eager, int turns) {
  std::vector<at::Tensor> inputs;
  const torch::jit::Module io = torch::jit::load((folder / (name + ".io")).string());
  for (const at::Tensor& tensor : io.buffers()) inputs.push_back(tensor);
  const at::Tensor target = inputs.back();
  inputs.pop_back();
  std::map<std::string, Stepper> steppers;
  steppers.emplace("pt2", exported_stepper(folder / (name + ".pt2")));
  steppers.emplace("script", script_stepper(folder / (name + ".pt")));
  if (name == "gpt") steppers.emplace("cpp", stepper_of(bench::Gpt(kGpt)));
  if (name == "resnet18") steppers.emplace("cpp", stepper_of(ResNet18(1000)));
  constexpr int kSteps = 4;
  std::map<std::string, std::vector<double>> times;
  for (int turn = 0; turn < turns; ++turn) {
    for (auto& [contestant, stepper] : steppers) {
      for (int i = 0; i < kSteps; ++i) {
        const double ms = step_ms(stepper, inputs, target);
        if (i > 0 && turn > 0) times[contestant].push_back(ms);
      }
    }
    const auto ns = eager.steps(kSteps, name);
    for (int i = 1; i < kSteps && turn > 0; ++i)
      times["eager"].push_back(static_cast<double>(ns[static_cast<std::size_t>(i)]) / 1e6);
  }
  Json row{{"model", name}};
  for (auto& [contestant, samples] : times) row[contestant + "_ms"] = bench::median_of(samples);
  double best = row["script_ms"].get<double>();
  if (row.contains("cpp_ms")) best = std::min(best, row["cpp_ms"].get<double>());
  row["ratio"] = row["pt2_ms"].get<double>() / best;
  row["eager_ratio"] = row["pt2_ms"].get<double>() / row["eager_ms"].get<double>();
  return row;
}

int compare(int argc, char** argv) {
  bool json = false, quick = false;
  std::vector<std::string> models{"resnet18", "gpt", "bert"};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      json = true;
    } else if (word == "--quick") {
      quick = true;
    } else if (word == "--models" && i + 1 < argc) {
      models.clear();
      std::istringstream list(argv[++i]);
      for (std::string name; std::getline(list, name, ',');) models.push_back(name);
    } else {
      std::cerr << "usage: bench_exported [--json] [--quick] [--models resnet18,gpt,bert]\n";
      return 2;
    }
  }
  at::set_num_threads(1);
  const bench::ScratchFolder folder;
  bench::Contestant eager(folder.path() / "eager", 1);
  ProcessOptions options;
  options.command = {DTRAIN_SOURCE_DIR "/.deps/peers/bin/python", "-B",
                     DTRAIN_SOURCE_DIR "/tests/bench/exported_step.py", folder.path().string(), eager.base()};
  options.command.insert(options.command.end(), models.begin(), models.end());
  Process python = Process::start(options);
  for (const std::string& model : models) eager.steps(1, model);  // the files are there now
  Json result;
  for (const std::string& model : models) {
    const Json row = measure(model, folder.path(), eager, quick ? 4 : 16);
    const std::string key = model == "resnet18" ? "resnet" : model;
    result[key + "_ratio"] = row["ratio"];
    result[key + "_eager_ratio"] = row["eager_ratio"];
    for (const char* contestant : {"pt2", "script", "cpp", "eager"}) {
      const std::string of = std::string(contestant) + "_ms";
      if (row.contains(of)) result[key + "_" + of] = row[of];
    }
    if (!json) std::cout << to_line(row) << std::endl;
  }
  eager.end("end");
  python.wait();
  if (json) std::cout << to_line(result) << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return compare(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "bench_exported: " << dtrain::describe(error) << "\n";
    return 1;
  }
}
