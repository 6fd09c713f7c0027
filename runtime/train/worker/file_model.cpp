#include "worker/file_model.h"

#include <algorithm>

#include <ATen/core/function_schema.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/train/gradient_checkpointing.h"
#include "exported/archive.h"
#include "exported/evaluation_mode.h"
#include "exported/exported_model.h"

namespace dtrain::worker {
namespace {

// Returns the names of a named tuple's elements; empty for a plain tuple.
std::vector<std::string> names_of(const c10::TupleType& type) {
  std::vector<std::string> names;
  if (const auto& schema = type.schema()) {
    for (const c10::Argument& element : schema->arguments()) names.push_back(element.name());
  }
  return names;
}

std::string elements_of(const c10::TupleType& type) {
  const std::vector<std::string> names = names_of(type);
  if (!names.empty()) return join(names, ", ");
  const std::size_t count = type.elements().size();
  return count == 1 ? "0" : "0 to " + std::to_string(count - 1);
}

std::string none_such(const OutputChoice& choice) {
  return choice.key + " is '" + choice.name + "', but the model's forward() returns ";
}

constexpr const char* kScoresAlone = "let it return the scores alone, or choose an output with loss.output";

constexpr std::size_t kMostNamed = 5;  // number of names in a warning

std::vector<std::string> names_of(const std::vector<exported::Input>& inputs) {
  std::vector<std::string> names;
  for (const exported::Input& input : inputs) names.push_back(input.name);
  return names;
}

std::vector<std::string> tensors_of(const std::vector<exported::Output>& outputs) {
  std::vector<std::string> names;
  for (const exported::Output& output : outputs) {
    if (output.is_tensor) names.push_back(output.name);
  }
  return names;
}

std::string some_of(std::vector<std::string> names) {
  const std::size_t left = names.size() - std::min(names.size(), kMostNamed);
  names.resize(names.size() - left);
  return join(names, ", ") + (left > 0 ? " and " + std::to_string(left) + " more" : "");
}

// Converts features, for data sets have fewer integer types than models. Integers keep their values; a mask turns bool.
at::Tensor in_type(const at::Tensor& tensor, at::ScalarType type) {
  const at::ScalarType own = tensor.scalar_type();
  if (own == type) return tensor;
  const bool both_float = at::isFloatingType(own) && at::isFloatingType(type);
  const bool wider = at::isIntegralType(own, true) && at::isIntegralType(type, false) &&
                     c10::elementSize(type) > c10::elementSize(own);
  const bool mask = at::isIntegralType(own, false) && type == at::kBool;
  return both_float || wider || mask ? tensor.to(type) : tensor;
}

bool is_exported(const std::filesystem::path& file) {
  std::error_code code;
  if (!std::filesystem::is_regular_file(file, code)) return false;
  return file.extension() == ".pt2" || exported::is_exported_program(file);
}

}  // namespace

std::optional<std::size_t> element_of(const c10::TupleType& type, const std::string& name) {
  const std::vector<std::string> names = names_of(type);
  if (const auto found = std::find(names.begin(), names.end(), name); found != names.end())
    return static_cast<std::size_t>(found - names.begin());
  const auto number = to_number<std::size_t>(name);
  return number && *number < type.elements().size() ? number : std::nullopt;
}

void check_choice(const c10::TypePtr& returned, const OutputChoice& choice, const std::string& file) {
  const auto tuple = returned->cast<c10::TupleType>();
  const bool several = tuple || returned->cast<c10::DictType>();
  if (choice.name.empty()) {
    const auto& tensor = *c10::TensorType::get();
    if (returned->isSubtypeOf(tensor) || (!several && tensor.isSubtypeOf(*returned))) return;
    throw ConfigError("model: " + file + ": forward() returns " + returned->annotation_str() + ", not a Tensor",
                      several ? kScoresAlone : "let it return the scores alone");
  }
  if (returned->isSubtypeOf(*c10::TensorType::get())) {
    throw ConfigError("model: " + file + ": " + none_such(choice) + "one Tensor", "remove " + choice.key);
  }
  if (tuple && !element_of(*tuple, choice.name)) {
    throw ConfigError("model: " + file + ": " + none_such(choice) + returned->annotation_str(),
                      "its outputs are: " + elements_of(*tuple));
  }
}

at::Tensor chosen_output(const c10::IValue& returned, const OutputChoice& choice) {
  c10::IValue value = returned;
  if (!choice.name.empty() && returned.isTuple()) {
    const auto type = returned.toTuple()->type();
    const auto element = element_of(*type, choice.name);
    if (!element)
      throw Error(none_such(choice) + returned.type()->annotation_str(), "its outputs are: " + elements_of(*type));
    value = returned.toTuple()->elements()[*element];
  } else if (!choice.name.empty() && returned.isGenericDict()) {
    const auto dict = returned.toGenericDict();
    const auto found = std::find_if(dict.begin(), dict.end(), [&](const auto& entry) {
      return entry.key().isString() && entry.key().toStringRef() == choice.name;
    });
    if (found == dict.end()) {
      std::vector<std::string> keys;
      for (const auto& entry : dict) {
        if (entry.key().isString()) keys.push_back(entry.key().toStringRef());
      }
      throw Error(none_such(choice) + "a dict without it", "its outputs are: " + join(keys, ", "));
    }
    value = found->value();
  } else if (!choice.name.empty()) {
    throw Error(none_such(choice) + returned.type()->annotation_str(), "let it return a tuple or a dict of tensors");
  }
  if (value.isTensor() && value.toTensor().defined()) return value.toTensor();
  if (choice.name.empty()) {
    throw Error("the model's forward() returned " + value.type()->annotation_str() + ", not a Tensor",
                value.isTuple() || value.isGenericDict() ? kScoresAlone : "let it return the scores alone");
  }
  throw Error("the model's output '" + choice.name + "' (" + choice.key + ") is " + value.type()->annotation_str() +
                  ", not a Tensor",
              "choose an output that is a tensor");
}

namespace {

// A file of torch.export (`.pt2`) as a model that ModelTrial trains. Matches the tensors of the data to the names of
// the program's inputs and outputs. Training thread.
class ExportedFile final : public FileModel {
 public:
  // ConfigError: those of exported::ExportedModel.
  explicit ExportedFile(const std::filesystem::path& file) : model_(file), dtype_(trained_type(*model_.tree())) {}
  ExportedFile(const std::filesystem::path& file, const ExportedFile& trained)
      : model_(file, *trained.model_.tree(), trained.model_.archive().file()), dtype_(trained.dtype_) {}

  std::shared_ptr<torch::nn::Module> tree() const override { return model_.tree(); }
  at::ScalarType dtype() const override { return dtype_; }
  at::ScalarType features_type() const override {
    for (std::size_t i = 0; i < order_.size(); ++i) {
      if (order_[i] == 0) return model_.program().inputs[i].type;
    }
    return dtype_;
  }

  // Matches inputs by name if the data has the program's names for all of them, and otherwise by position.
  void check_signature(const std::vector<ModelInput>& inputs, const std::vector<OutputChoice>& outputs) override {
    const std::vector<std::string> own = names_of(model_.program().inputs);
    std::vector<std::string> described;
    for (const ModelInput& input : inputs) described.push_back(input.described);
    if (own.size() != inputs.size()) {
      refuse("takes " + std::to_string(own.size()) + " tensors (" + join(own, ", ") + "), not " +
                 std::to_string(inputs.size()),
             "it is called with " + join_with_and(described) +
                 ": name further tensors in data.more_inputs (safetensors), switch them on in the transform (tokens: "
                 "mask, " +
                 "lengths, positions, documents), or export it with these alone");
    }
    order_.assign(own.size(), 0);
    const auto place_of = [&](const ModelInput& input) {
      return static_cast<std::size_t>(std::find(own.begin(), own.end(), input.name) - own.begin());
    };
    const bool by_name = std::all_of(inputs.begin(), inputs.end(),
                                     [&](const ModelInput& input) { return place_of(input) < own.size(); });
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::size_t named = place_of(inputs[i]);
      const std::size_t place = by_name ? named : i;
      if (named < own.size() && named != place) {
        refuse("takes " + join(own, ", ") + ", and the data's '" + inputs[i].name + "' stands where '" + own[place] +
                   "' is expected",
               "give all tensors the names that the model has for them, or put them in its order");
      }
      order_[place] = i;
    }
    for (const OutputChoice& output : outputs) index_of(output);
  }

  bool returns_one_tensor() const override {
    const auto& outputs = model_.program().outputs;
    return outputs.size() == 1 && outputs[0].name.empty();
  }

  void check_samples(std::int64_t samples, const std::string& which) const override {
    try {
      model_.check_samples(samples);
    } catch (const Error& error) {
      throw ConfigError(
          which + ", which model: " + model_.archive().file().string() + " does not take: " + error.what(),
          error.remedy());
    }
  }

  c10::IValue forward(const std::vector<at::Tensor>& inputs) override {
    std::vector<at::Tensor> ordered(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i)
      ordered[i] = in_type(inputs[order_[i]], model_.program().inputs[i].type);
    return c10::List<at::Tensor>(model_.forward(ordered));
  }

  at::Tensor output(const c10::IValue& returned, const OutputChoice& choice) const override {
    return returned.toTensorList().get(index_of(choice));
  }

  TakenLayer take_last_layer(const OutputChoice& output, std::int64_t least_classes) override {
    auto taken = model_.take_last_layer(index_of(output), least_classes);
    return {{taken.name, taken.weight, taken.bias}, taken.why_not};
  }

  void checkpoint_modules(const std::string& patterns, const std::string& key) override {
    model_.checkpoint_modules(patterns, key, train::run_checkpointed);
  }

  std::string why_not_repeatable() const override { return model_.why_not_repeatable(); }
  std::optional<Warning> fixed_mode(bool for_training, bool /*for_evaluation*/) const override {
    if (!for_training) return std::nullopt;
    if (exported::is_in_evaluation_mode(model_.program())) {
      const auto idle = exported::modal_operators(model_.program());
      return Warning{"was exported in evaluation mode: " + join_with_and(idle) + (idle.size() == 1 ? " does" : " do") +
                         " not train",
                     "call model.train() before torch.export.export()"};
    }
    const std::vector<std::string> frozen = exported::modules_in_evaluation(model_.program());
    if (frozen.empty()) return std::nullopt;
    return Warning{"was exported with parts in evaluation mode, which they keep: " + some_of(frozen),
                   "that is right for frozen parts; otherwise call model.train() before torch.export.export()"};
  }

  std::optional<Warning> suspected_backward() const override {
    const std::vector<std::string>& lines = model_.program().suspected_backward;
    if (lines.empty()) return std::nullopt;
    return Warning{
        "calls forward() of what is no module of the model: " + some_of(lines),
        "if it is a torch.autograd.Function, its backward is lost (docs/exporting.md#backward-code-of-your-own); "
        "a module from elsewhere is trained as in PyTorch"};
  }

  void check_evaluation() const override {
    const std::string& why = model_.program().why_no_evaluation;
    if (why.empty()) return;
    throw ConfigError("model: " + model_.archive().file().string() + " cannot be used for validation, because " + why +
                          ", and the file does not say whether evaluation does that",
                      "export the model once more after model.eval(), and name both files: model: {train: a.pt2, eval: "
                      "b.pt2}");
  }

  void save(const std::filesystem::path& path) const override { model_.save(path); }
  const char* extension() const override { return ".pt2"; }

 private:
  std::size_t index_of(const OutputChoice& choice) const {
    const auto& outputs = model_.program().outputs;
    const std::vector<std::string> tensors = tensors_of(outputs);
    const std::string listed = "its outputs are: " + join(tensors, ", ");
    if (choice.name.empty()) {
      if (tensors.size() != 1) {
        refuse("returns " + std::to_string(tensors.size()) + " tensors (" + join(tensors, ", ") + ")",
               "choose one of them with loss.output");
      }
      const auto only =
          std::find_if(outputs.begin(), outputs.end(), [](const auto& output) { return output.is_tensor; });
      return static_cast<std::size_t>(only - outputs.begin());
    }
    if (returns_one_tensor()) {
      throw ConfigError("model: " + model_.archive().file().string() + ": " + choice.key + " is '" + choice.name +
                            "', but the model's forward() returns one tensor",
                        "remove " + choice.key);
    }
    const auto found = std::find_if(outputs.begin(), outputs.end(),
                                    [&](const exported::Output& output) { return output.name == choice.name; });
    if (found == outputs.end() || !found->is_tensor) {
      throw ConfigError("model: " + model_.archive().file().string() + ": " + choice.key + " is '" + choice.name +
                            "', but the model's forward() returns no such tensor",
                        listed);
    }
    return static_cast<std::size_t>(found - outputs.begin());
  }

  [[noreturn]] void refuse(const std::string& what, const std::string& remedy) const {
    throw ConfigError("model: " + model_.archive().file().string() + ": forward() " + what, remedy);
  }

  exported::ExportedModel model_;
  at::ScalarType dtype_ = at::kFloat;
  std::vector<std::size_t> order_;  // for each input of the program, its index in the inputs of forward()
};

}  // namespace

at::ScalarType trained_type(const torch::nn::Module& model) {
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.requires_grad()) return parameter.scalar_type();
  }
  return at::kFloat;
}

std::unique_ptr<FileModel> load_model(const std::filesystem::path& file) {
  if (is_exported(file)) return std::make_unique<ExportedFile>(file);
  return make_script_model(file);
}

std::unique_ptr<FileModel> load_eval_model(const std::filesystem::path& file, const FileModel& trained) {
  const auto* exported_file = dynamic_cast<const ExportedFile*>(&trained);
  if (is_exported(file) != (exported_file != nullptr)) {
    throw ConfigError("model: " + file.string() + " is " + (exported_file ? "TorchScript" : "an exported program") +
                          ", and the file to train is " + (exported_file ? "an exported program" : "TorchScript"),
                      "save both from the same model in the same way, once in each mode");
  }
  if (exported_file) return std::make_unique<ExportedFile>(file, *exported_file);
  return make_script_model(file, trained);
}

}  // namespace dtrain::worker
