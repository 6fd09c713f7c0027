#include "exported/exported_model.h"

#include <algorithm>
#include <new>
#include <sstream>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/enum_tag.h>
#include <c10/util/Exception.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "exported/weights.h"

namespace dtrain::exported {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDeepestModule = 100;
constexpr const char* kSameModel = "export both files from the same model in Python, once in each mode";

std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes() << " " << c10::getDtypeNames(tensor.scalar_type()).first;
  return text.str();
}

// True for the state of a model: parameters, and buffers that are in state_dict() or written.
bool is_registered(const Stored& stored) {
  return stored.kind == Stored::Kind::kParameter ||
         (stored.kind == Stored::Kind::kBuffer && (stored.persistent || stored.changed));
}

}  // namespace

ExportedModel::ExportedModel(const fs::path& file)
    : archive_(file), program_(read_program(archive_, /*is_trained=*/true)), shapes_(program_) {
  const std::vector<at::Tensor> stored = own_tensors();
  make_tree(stored);
  const std::vector<at::Tensor> parameters = tree_->parameters();
  const auto trains = [](const at::Tensor& parameter) { return parameter.requires_grad(); };
  if (std::none_of(parameters.begin(), parameters.end(), trains)) {
    throw ConfigError("model: " + file.string() + " has " +
                          (parameters.empty() ? "no parameters" : "no parameter that requires a gradient"),
                      "there is nothing to train: export it with requires_grad_(True) on what is to be trained");
  }
  runner_ = std::make_unique<Runner>(program_, stored);
}

ExportedModel::ExportedModel(const fs::path& file, const torch::nn::Module& trained, const fs::path& trained_file)
    : archive_(file), program_(read_program(archive_, /*is_trained=*/false)), shapes_(program_) {
  const std::vector<at::Tensor> stored = tensors_of(trained, trained_file);
  make_tree(stored);
  tree_->eval();
  runner_ = std::make_unique<Runner>(program_, stored);
}

std::vector<at::Tensor> ExportedModel::own_tensors() {
  const StoredTensors read = read_tensors(archive_);
  Tensors weights;
  for (const StoredTensor& weight : read.weights) weights.emplace(weight.name, weight.tensor);
  std::vector<at::Tensor> tensors;
  for (const Stored& stored : program_.stored) {
    const bool is_weight = stored.kind != Stored::Kind::kConstant && stored.persistent;
    const Tensors& from = is_weight ? weights : read.constants;
    const auto found = from.find(stored.name);
    if (found == from.end()) archive_.fail("has no values of its tensor '" + stored.name + "'");
    tensors.push_back(found->second);
  }
  return tensors;
}

std::vector<at::Tensor> ExportedModel::tensors_of(const torch::nn::Module& trained, const fs::path& trained_file) {
  Tensors of_trained;
  for (const auto& item : trained.named_parameters()) of_trained.emplace(item.key(), item.value());
  for (const auto& item : trained.named_buffers()) of_trained.emplace(item.key(), item.value());
  std::vector<at::Tensor> tensors = own_tensors();
  std::size_t count = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Stored& stored = program_.stored[i];
    if (!is_registered(stored)) continue;
    const std::string what = (stored.kind == Stored::Kind::kParameter ? "parameter '" : "buffer '") + stored.name + "'";
    const auto found = of_trained.find(stored.name);
    if (found == of_trained.end()) {
      throw ConfigError("model: " + archive_.file().string() + " has a " + what + ", which " + trained_file.string() +
                            " does not have",
                        kSameModel);
    }
    if (tensors[i].sizes() != found->second.sizes() || tensors[i].scalar_type() != found->second.scalar_type()) {
      throw ConfigError("model: " + archive_.file().string() + ": " + what + " is " + describe(tensors[i]) + ", in " +
                            trained_file.string() + " it is " + describe(found->second),
                        kSameModel);
    }
    tensors[i] = found->second;
    count += tensors[i].requires_grad() ? 1 : 0;
  }
  if (count == 0) {
    throw ConfigError("model: " + archive_.file().string() + " has none of the parameters that are trained in " +
                          trained_file.string(),
                      kSameModel);
  }
  return tensors;
}

ExportedTree& ExportedModel::module_at(const std::string& path) {
  auto* module = static_cast<ExportedTree*>(tree_.get());
  std::string done;
  if (path.empty()) return *module;
  const std::vector<std::string> names = split(path, '.');
  if (names.size() > kDeepestModule) archive_.fail("has modules that are nested too deeply");
  for (const std::string& name : names) {
    done += (done.empty() ? "" : ".") + name;
    const auto children = module->named_children();
    if (const auto* child = children.find(name)) {
      module = static_cast<ExportedTree*>(child->get());
      continue;
    }
    const auto known = program_.classes.find(done);
    auto child = std::make_shared<ExportedTree>(known == program_.classes.end() ? "Module" : known->second);
    module = module->register_module(name, std::move(child)).get();
  }
  return *module;
}

void ExportedModel::make_tree(const std::vector<at::Tensor>& stored) {
  const auto root = program_.classes.find("");
  tree_ = std::make_shared<ExportedTree>(root == program_.classes.end() ? "Module" : root->second);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (!is_registered(program_.stored[i])) continue;
    const std::string& name = program_.stored[i].name;
    const auto dot = name.rfind('.');
    const std::string own = dot == std::string::npos ? name : name.substr(dot + 1);
    try {
      ExportedTree& module = module_at(dot == std::string::npos ? std::string() : name.substr(0, dot));
      if (program_.stored[i].kind == Stored::Kind::kParameter) {
        module.register_parameter(own, stored[i], stored[i].requires_grad());
      } else {
        module.register_buffer(own, stored[i]);
        if (!program_.stored[i].persistent) module.leave_out(own);
      }
    } catch (const c10::Error& error) {
      archive_.fail("has a tensor '" + name + "' that cannot be: " + plain_message(error));
    }
  }
}

std::vector<at::Tensor> ExportedModel::forward(std::span<const at::Tensor> inputs) {
  shapes_.check(inputs);
  if (!std::exchange(on_device_, true)) {
    const auto parameters = tree_->parameters();
    if (!parameters.empty()) runner_->move_to(parameters.front().device());
  }
  try {
    return runner_->run(inputs, tree_->is_training());
  } catch (const std::exception& error) {
    fail(inputs, error);
  }
}

void ExportedModel::fail(std::span<const at::Tensor> inputs, const std::exception& error) const {
  const std::string message = plain_message(error);
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
                         message.find("can't allocate memory") != std::string::npos ||
                         message.find("out of memory") != std::string::npos;
  std::vector<std::string> shapes;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    shapes.push_back("'" + program_.inputs[i].name + "' " + describe(inputs[i]));
  }
  std::string where;
  if (const Instruction* failed = runner_->failed()) {
    where = ", in " + failed->target + (failed->module.empty() ? "" : " of " + failed->module);
  }
  throw Error("the model's forward() failed on inputs " + join(shapes, ", ") + where + ": " + message,
              no_memory ? "lower hyperparameters.global_batch_size"
                        : "give it data of the shape and type it was exported for, or change the model");
}

void ExportedModel::checkpoint_modules(const std::string& patterns, const std::string& key, RunCheckpointed run) {
  runner_->checkpoint(checkpointed_parts(program_, patterns, key), std::move(run));
}

ExportedModel::TakenLayer ExportedModel::take_last_layer(std::size_t output, std::int64_t least_classes) {
  const auto found = last_layer(program_, output);
  if (const auto* why_not = std::get_if<std::string>(&found)) return {{}, {}, {}, *why_not};
  const LastLayer& layer = std::get<LastLayer>(found);
  TakenLayer taken{layer.weight->name, runner_->stored(*layer.weight),
                   layer.bias ? runner_->stored(*layer.bias) : at::Tensor(), ""};
  if (taken.weight.dim() != 2 || taken.weight.size(0) < least_classes) {
    taken.why_not = "its last layer has " + std::to_string(taken.weight.size(0)) + " classes, fewer than " +
                    std::to_string(least_classes);
  } else if (runner_->checkpoints(layer.instruction)) {
    taken.why_not = "its last layer belongs to a module that is computed again in backward";
  } else {
    runner_->leave_out(layer);
  }
  return taken;
}

void ExportedModel::save(const fs::path& path) const {
  Tensors weights;
  for (const auto& item : tree_->named_parameters()) weights.emplace(item.key(), item.value().detach());
  for (const auto& item : tree_->named_buffers()) weights.emplace(item.key(), item.value());
  write_archive(archive_, weights, path);
}

std::string ExportedModel::why_not_repeatable() const {
  for (const Instruction& instruction : program_.instructions) {
    // aten.index with numbers has a known shape. With a mask it has none, and the capture of the graph fails by itself.
    const bool reads = instruction.kind == Instruction::Kind::kOperator && instruction.target != "aten.index.Tensor" &&
                       (instruction.op->hasTag(at::Tag::data_dependent_output) ||
                        instruction.op->hasTag(at::Tag::dynamic_output_shape));
    if (!reads) continue;
    return "the model's forward() reads values on the host (" + instruction.target +
           (instruction.module.empty() ? ")" : " of " + instruction.module + ")");
  }
  return "";
}

}  // namespace dtrain::exported
