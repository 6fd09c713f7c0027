#include "model/weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <sstream>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/rank/model_files.h"
#include "model/flat_parameters.h"
#include "model/model_tensors.h"

namespace dtrain::train {
namespace {

constexpr std::size_t kMostListed = 20;

NamedTensors state_of(const torch::nn::Module& model) {
  NamedTensors tensors;
  for (const auto& parameter : distinct_parameters(model)) {
    for (const auto& name : parameter.names) tensors.emplace_back(name, parameter.tensor);
  }
  for (const auto& item : model.named_buffers()) {
    if (item.value().defined()) tensors.emplace_back(item.key(), item.value());
  }
  return tensors;
}

// Translates the names of the tensors in a file of another program to those of the model: initial_weights.strip_prefix
// and rename.
class WeightNames {
 public:
  explicit WeightNames(const config::InitialWeights& weights) : weights_(weights) {}

  std::string in_model(const std::string& name_in_file) {
    std::string name = name_in_file;
    if (!weights_.strip_prefix.empty() && name.starts_with(weights_.strip_prefix)) {
      name.erase(0, weights_.strip_prefix.size());
      stripped_ = true;
    }
    std::size_t chosen = weights_.rename.size();
    for (std::size_t i = 0; i < weights_.rename.size(); ++i) {
      const std::string& from = weights_.rename[i].first;
      if (!name.starts_with(from)) continue;
      renamed_[i] = true;
      if (chosen == weights_.rename.size() || from.size() > weights_.rename[chosen].first.size()) chosen = i;
    }
    if (chosen == weights_.rename.size()) return name;
    const auto& [from, to] = weights_.rename[chosen];
    return to + name.substr(from.size());
  }

  // ConfigError if no name began with strip_prefix, or with one of rename's beginnings. `file` is one of the files that
  // were read.
  void check_used(const std::filesystem::path& file) const {
    const auto refuse = [&](const std::string& key, const std::string& beginning) {
      throw ConfigError("initial_weights." + key + ": no tensor of " + weights_.file.string() +
                            " has a name that begins with '" + beginning + "'",
                        "look at the names: python3 -c 'from safetensors import safe_open; "
                        "print(safe_open(\"" +
                            file.string() + "\", \"pt\").keys())'");
    };
    if (!weights_.strip_prefix.empty() && !stripped_) refuse("strip_prefix", weights_.strip_prefix);
    for (std::size_t i = 0; i < renamed_.size(); ++i) {
      if (!renamed_[i]) refuse("rename", weights_.rename[i].first);
    }
  }

 private:
  const config::InitialWeights& weights_;
  bool stripped_ = false;
  std::vector<bool> renamed_ = std::vector<bool>(weights_.rename.size());
};

// A tensor in the files.
struct Stored {
  std::string name;  // in its file
  std::size_t file = 0;
  const data::SafetensorsEntry* entry = nullptr;
  std::string shown(const std::string& in_model) const {
    return name == in_model ? "'" + name + "'" : "'" + in_model + "' ('" + name + "' in the file)";
  }
};

// A tensor of the model, and its entries in the files: a tied tensor may be there under several names.
struct Wanted {
  std::vector<std::string> names;
  at::Tensor tensor;
  std::vector<const std::pair<const std::string, Stored>*> found;
  bool may_lack = false;  // files written by Python do not have it
};

std::vector<Wanted> wanted_by(const torch::nn::Module& model) {
  const std::set<std::string> left_out = left_out_of_weights(model);
  std::vector<Wanted> result;
  for (const auto& [name, tensor] : state_of(model)) {
    const auto same = std::find_if(result.begin(), result.end(),
                                   [&](const Wanted& other) { return same_memory(other.tensor, tensor); });
    if (same != result.end()) {
      same->names.push_back(name);
      same->may_lack &= left_out.contains(name);
    } else {
      result.push_back({{name}, tensor, {}, left_out.contains(name)});
    }
  }
  return result;
}

std::string list_of(const std::vector<std::string>& lines) {
  std::string text;
  for (std::size_t i = 0; i < std::min(lines.size(), kMostListed); ++i) text += "\n  " + lines[i];
  if (lines.size() > kMostListed) text += "\n  and " + std::to_string(lines.size() - kMostListed) + " more";
  return text;
}

// The differences that keep the files from fitting the model.
struct Differences {
  std::vector<std::string> lines;    // differences of all kinds, for an error
  std::vector<std::string> missing;  // names in the model
  std::vector<std::string> surplus;  // names as the model would have them
  std::size_t types = 0;             // floating-point values of another type
  std::size_t others = 0;            // tensors of another shape, or of a type that is not converted
};

class WeightLoader {
 public:
  WeightLoader(torch::nn::Module& model, const config::InitialWeights& options, const std::string& what)
      : options_(options), what_(what), source_(rank::find_weight_files(options)), wanted_(wanted_by(model)) {
    WeightNames names(options);
    for (const auto& path : source_.files) {
      for (const auto& entry : files_.emplace_back(path).entries())
        add(names.in_model(entry.name), {entry.name, files_.size() - 1, nullptr});
    }
    names.check_used(source_.files.front());
    // The files no longer move in memory.
    for (auto& [name, stored] : stored_) stored.entry = &files_[stored.file].at(stored.name);
  }

  LoadedWeights load() {
    compare();
    const std::size_t fitting =
        std::count_if(wanted_.begin(), wanted_.end(), [](const Wanted& wanted) { return !wanted.found.empty(); });
    if (!differences_.lines.empty() && (options_.strict || fitting == 0)) refuse();
    for (const Wanted& wanted : wanted_) copy(wanted);
    LoadedWeights loaded{source_.from, {}, source_.checkpoint};
    for (const std::string& name : source_.passed_over) loaded.warnings.push_back("passed over " + name);
    if (!differences_.lines.empty()) {
      loaded.warnings.push_back(what_ + ": " + std::to_string(fitting) + " of the model's " +
                                std::to_string(wanted_.size()) +
                                " tensors come from there; the others keep the values that "
                                "they were made with:" +
                                list_of(differences_.lines));
    }
    return loaded;
  }

 private:
  void add(const std::string& name, const Stored& stored) {
    const auto [known, is_new] = stored_.try_emplace(name, stored);
    if (is_new) return;
    throw ConfigError(what_ + ": '" + known->second.name + "' and '" + stored.name + "' of " + source_.from +
                          " both become '" + name + "'",
                      "change strip_prefix or rename so that every tensor has a name of its own");
  }

  void compare() {
    std::map<std::string, bool> used;
    for (Wanted& wanted : wanted_) {
      bool fits = true;
      std::vector<const std::pair<const std::string, Stored>*> found;
      for (const std::string& name : wanted.names) {
        const auto stored = stored_.find(name);
        if (stored == stored_.end()) continue;
        used[name] = true;
        const std::string wrong = misfit(wanted.tensor, stored->second);
        if (!wrong.empty()) differences_.lines.push_back(stored->second.shown(name) + wrong);
        fits &= wrong.empty();
        found.push_back(&*stored);
      }
      if (found.empty() && !wanted.may_lack) {
        std::string line = "'" + wanted.names.front() + "'";
        for (std::size_t i = 1; i < wanted.names.size(); ++i)
          line += (i == 1 ? " (tied: '" : ", '") + wanted.names[i] + "'";
        differences_.lines.push_back(line + (wanted.names.size() > 1 ? ")" : "") + " is not in the file");
        differences_.missing.push_back(wanted.names.front());
      }
      if (fits) wanted.found = std::move(found);
    }
    for (const auto& [name, stored] : stored_) {
      if (used.contains(name)) continue;
      differences_.lines.push_back(stored.shown(name) + " is in the file but not in the model");
      differences_.surplus.push_back(name);
    }
  }

  // Returns " is [5] in the file and [3] in the model"; empty: the tensor fits.
  std::string misfit(const at::Tensor& tensor, const Stored& stored) {
    std::ostringstream text;
    const at::IntArrayRef shape = stored.entry->shape;
    if (shape != tensor.sizes()) {
      ++differences_.others;
      text << " is " << shape << " in the file and " << tensor.sizes() << " in the model";
      return text.str();
    }
    const auto type = known_type(stored.entry->dtype);
    if (type == tensor.scalar_type()) return {};
    const bool floating = type && at::isFloatingType(*type) && tensor.is_floating_point();
    if (floating && options_.convert_types) return {};
    ++(floating ? differences_.types : differences_.others);
    text << " is " << (type ? c10::getDtypeNames(*type).first : stored.entry->dtype) << " in the file and "
         << c10::getDtypeNames(tensor.scalar_type()).first << " in the model";
    return text.str();
  }

  static std::optional<at::ScalarType> known_type(const std::string& dtype) {
    try {
      return scalar_type_of(dtype);
    } catch (const DataError&) {
      return std::nullopt;
    }
  }

  void copy(const Wanted& wanted) {
    at::Tensor first;
    for (const auto* stored : wanted.found) {
      const at::Tensor values = read_tensor(files_[stored->second.file], *stored->second.entry);
      if (!first.defined()) {
        first = values;
        at::Tensor(wanted.tensor).copy_(values);
      } else if (first.scalar_type() != values.scalar_type() ||
                 std::memcmp(first.const_data_ptr(), values.const_data_ptr(), first.nbytes()) != 0) {
        throw ConfigError(what_ + ": '" + wanted.found.front()->first + "' and '" + stored->first +
                              "' are one tensor in the model, and differ in " + source_.from,
                          "take one of them out of the file");
      }
    }
  }

  [[noreturn]] void refuse() const {
    throw ConfigError(what_ + ": " + source_.from + " does not fit the model:" + list_of(differences_.lines), remedy());
  }

  std::string remedy() const {
    if (const std::string prefix = extra_prefix(); !prefix.empty()) {
      return "the names in the file begin with '" + prefix + "': initial_weights: {file: " + options_.file.string() +
             ", strip_prefix: '" + prefix + "'} removes that";
    }
    if (differences_.types == differences_.lines.size()) {
      return "initial_weights: {file: " + options_.file.string() + ", convert_types: true} converts them";
    }
    if (!options_.strict) return "no tensor of the file fits the model: rename maps names of another program";
    return "give the weights of the same model, by its parameters' names and in their types; initial_weights: {file: "
           "…, "
           "rename: …} maps names, and strict: false loads what fits";
  }

  // Returns "module." if all surplus names begin with it, and the first is a missing name behind it.
  std::string extra_prefix() const {
    const auto& [lines, missing, surplus, types, others] = differences_;
    if (missing.empty() || surplus.empty()) return {};
    for (const std::string& name : missing) {
      if (!surplus.front().ends_with(name)) continue;
      const std::string prefix = surplus.front().substr(0, surplus.front().size() - name.size());
      const bool all = std::all_of(surplus.begin(), surplus.end(),
                                   [&](const std::string& other) { return other.starts_with(prefix); });
      if (!prefix.empty() && all) return prefix;
    }
    return {};
  }

  const config::InitialWeights& options_;
  const std::string& what_;
  const rank::WeightFiles source_;
  std::vector<data::SafetensorsFile> files_;
  std::map<std::string, Stored> stored_;  // by name in the model
  std::vector<Wanted> wanted_;
  Differences differences_;
};

struct TypeName {
  at::ScalarType type;
  const char* name;
};
constexpr std::array kTypeNames{TypeName{at::kFloat, "F32"}, TypeName{at::kDouble, "F64"},
                                TypeName{at::kHalf, "F16"},  TypeName{at::kBFloat16, "BF16"},
                                TypeName{at::kLong, "I64"},  TypeName{at::kInt, "I32"},
                                TypeName{at::kShort, "I16"}, TypeName{at::kChar, "I8"},
                                TypeName{at::kByte, "U8"},   TypeName{at::kBool, "BOOL"}};

}  // namespace

void save_weights(const torch::nn::Module& model, const std::filesystem::path& path) {
  std::error_code error;  // the write fails if the folder could not be made
  std::filesystem::create_directories(path.parent_path(), error);
  NamedTensors tensors = state_of(model);
  std::erase_if(tensors,
                [left_out = left_out_of_weights(model)](const auto& entry) { return left_out.contains(entry.first); });
  write_safetensors(path, tensors, {{"format", "pt"}});
}

LoadedWeights load_weights(torch::nn::Module& model, const config::InitialWeights& weights, const std::string& what) {
  const at::NoGradGuard no_grad;
  return WeightLoader(model, weights, what).load();
}

bool can_be_saved(at::ScalarType type) {
  return std::any_of(kTypeNames.begin(), kTypeNames.end(), [&](const TypeName& entry) { return entry.type == type; });
}

const char* safetensors_name(at::ScalarType type) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.type == type) return entry.name;
  }
  throw Error(std::string("safetensors cannot hold tensors of type ") + at::toString(type));
}

at::ScalarType scalar_type_of(const std::string& name) {
  for (const TypeName& entry : kTypeNames) {
    if (name == entry.name) return entry.type;
  }
  throw DataError("tensors of type " + name + " are not supported");
}

data::SafetensorsEntry safetensors_entry(const std::string& name, const at::Tensor& tensor) {
  return {name, safetensors_name(tensor.scalar_type()), tensor.sizes().vec(), 0, tensor.nbytes()};
}

at::Tensor read_tensor(const data::SafetensorsFile& file, const data::SafetensorsEntry& entry) {
  const auto known = std::find_if(kTypeNames.begin(), kTypeNames.end(),
                                  [&](const TypeName& type) { return entry.dtype == type.name; });
  if (known == kTypeNames.end()) {
    file.fail(entry.offset, "tensor '" + entry.name + "' is of type " + entry.dtype + ", which is not supported");
  }
  at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(known->type));
  file.read(entry, {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(entry.bytes)});
  return tensor;
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<data::SafetensorsEntry> entries;
  std::vector<at::Tensor> dense;
  for (const auto& [name, tensor] : tensors) {
    dense.push_back(tensor.detach().cpu().contiguous());
    entries.push_back(safetensors_entry(name, dense.back()));
  }
  const std::string header = data::safetensors_header(entries, metadata);
  std::vector<std::string_view> pieces{header};
  for (const at::Tensor& tensor : dense)
    pieces.emplace_back(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
  write_file_atomic(path, pieces);
}

std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path) {
  const data::SafetensorsFile file(path);
  std::map<std::string, at::Tensor> result;
  for (const auto& entry : file.entries()) result[entry.name] = read_tensor(file, entry);
  return result;
}

}  // namespace dtrain::train
