#include "exported/model_json.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain::exported {
namespace {

constexpr std::size_t kDeepestJson = 200;
constexpr std::size_t kMostNodes = 100'000;      // a transformer has 50 for each layer
constexpr std::size_t kMostValues = 12'000'000;  // a node has 100; a value takes up to 150 bytes
constexpr std::array<std::string_view, 3> kExplanations{"from_node", "torch_fn", "custom"};

// Builds the JSON value from the parser's events. The parser stops when an event returns false.
class ValueMaker final : public nlohmann::json_sax<Json> {
 public:
  Json root;
  std::string problem;  // empty: none

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    if (left_out_ > 0) return true;
    if (name == "target" && ++nodes_ > kMostNodes)
      return stop("has more than " + std::to_string(kMostNodes) + " operators");
    leave_out_next_ = std::find(kExplanations.begin(), kExplanations.end(), name) != kExplanations.end();
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return stop("is no JSON from byte " + std::to_string(position) + " on");
  }

 private:
  bool stop(std::string why) {
    if (problem.empty()) problem = std::move(why);
    return false;
  }

  // Stores the value and returns its address; null: the value is left out.
  Json* place(Json value) {
    if (left_out_ > 0) return nullptr;
    if (std::exchange(leave_out_next_, false)) return nullptr;
    ++values_;
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  bool add(Json value) {
    place(std::move(value));
    return values_ <= kMostValues || stop("has more than " + std::to_string(kMostValues) + " values");
  }

  bool open(Json value) {
    if (++depth_ > kDeepestJson) return stop("is nested too deeply");
    // An open value keeps its address: only the innermost open value grows.
    if (Json* const placed = place(std::move(value))) {
      open_.push_back(placed);
    } else {
      ++left_out_;
    }
    return values_ <= kMostValues || stop("has more than " + std::to_string(kMostValues) + " values");
  }

  bool close() {
    --depth_;
    if (left_out_ > 0) {
      --left_out_;
    } else {
      open_.pop_back();
    }
    return true;
  }

  std::vector<Json*> open_;
  std::string key_;
  std::size_t depth_ = 0, left_out_ = 0, nodes_ = 0, values_ = 0;
  bool leave_out_next_ = false;
};

// Reads a line of a Python traceback: File "net.py", line 12, in forward
bool read_place(std::string_view line, CodeLine& place) {
  constexpr std::string_view kFile = "File \"", kNumber = "\", line ", kFunction = ", in ";
  if (!line.starts_with(kFile)) return false;
  const auto number = line.rfind(kNumber);
  if (number == std::string_view::npos || number < kFile.size()) return false;
  const auto function = line.find(kFunction, number);
  if (function == std::string_view::npos) return false;
  const std::size_t digits = number + kNumber.size();
  place.file = line.substr(kFile.size(), number - kFile.size());
  place.number = line.substr(digits, function - digits);
  place.function = line.substr(function + kFunction.size());
  return true;
}

constexpr int kDeepestTree = 64;
constexpr std::size_t kMostLeaves = 100'000;

// Returns the names of a node's children; empty: the children have only numbers.
std::vector<std::string> child_names(const Json& node, const NamedTuples& named_tuples) {
  const auto context = node.find("context");
  if (context == node.end()) return {};
  Json keys = *context;
  if (keys.is_string()) {
    const auto text = keys.get<std::string>();
    if (const auto found = named_tuples.find(text); found != named_tuples.end()) return found->second;
    keys = Json::accept(text) ? parse_json(text) : Json();
  }
  // The context of a defaultdict.
  if (keys.is_object() && keys.contains("dict_context")) keys = Json(keys["dict_context"]);
  std::vector<std::string> names;
  if (keys.is_array()) {
    for (const Json& key : keys) names.push_back(key.is_string() ? key.get<std::string>() : key.dump());
  }
  return names;
}

class Leaves {
 public:
  explicit Leaves(const NamedTuples& named_tuples) : named_tuples_(named_tuples) {}

  void add(const Json& node, const std::string& name, int depth) {
    if (depth > kDeepestTree) throw Error("the structure of its inputs or outputs is nested too deeply");
    const auto children = node.is_object() ? node.find("children_spec") : node.end();
    const auto type = node.is_object() ? node.find("type") : node.end();
    if (children == node.end() || !children->is_array() || type == node.end())
      throw Error("the structure of its inputs or outputs is no treespec");
    if (type->is_null()) {
      names.push_back(name);
      if (names.size() > kMostLeaves) throw Error("it has too many inputs or outputs");
      return;
    }
    const std::vector<std::string> known = child_names(node, named_tuples_);
    for (std::size_t i = 0; i < children->size(); ++i) {
      const std::string own = known.size() == children->size() ? known[i] : std::to_string(i);
      add((*children)[i], name.empty() ? own : name + "." + own, depth + 1);
    }
  }
  std::vector<std::string> names;

 private:
  const NamedTuples& named_tuples_;
};

Json root_of(const std::string& spec) {
  Json json = Json::accept(spec) ? parse_json(spec) : Json();
  if (!json.is_array() || json.size() != 2 || json[0] != 1)
    throw Error("the structure of its inputs or outputs is of an unknown version");
  return std::move(json[1]);
}

}  // namespace

Json parse_json(const std::string& text) {
  ValueMaker maker;
  if (!Json::sax_parse(text, &maker)) throw Error(maker.problem.empty() ? "is no JSON" : maker.problem);
  return std::move(maker.root);
}

std::string metadata_text(const Json& node, const char* key) {
  const auto metadata = node.find("metadata");
  if (metadata == node.end() || !metadata->is_object()) return {};
  const auto text = metadata->find(key);
  return text != metadata->end() && text->is_string() ? text->get<std::string>() : std::string();
}

std::vector<CodeLine> code_lines(const Json& node) {
  std::vector<CodeLine> lines;
  for (const std::string& line : split(metadata_text(node, "stack_trace"), '\n')) {
    const auto begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos) continue;
    const std::string_view text = std::string_view(line).substr(begin);
    CodeLine place;
    if (read_place(text, place)) {
      lines.push_back(std::move(place));
    } else if (!lines.empty() && lines.back().text.empty()) {
      lines.back().text = text;
    }
  }
  return lines;
}

std::vector<EnteredModule> entered_modules(const Json& node) {
  std::vector<EnteredModule> modules;
  for (const std::string& entry : split(metadata_text(node, "nn_module_stack"), ';')) {
    const std::vector<std::string> parts = split(entry, ',');
    if (parts.size() != 3 || parts[1] == "_empty_nn_module_stack_from_metadata_hook") continue;
    modules.push_back({parts[1], parts[2]});
  }
  return modules;
}

std::vector<std::string> leaf_names(const std::string& spec, const NamedTuples& named_tuples) {
  Leaves leaves(named_tuples);
  leaves.add(root_of(spec), "", 0);
  return leaves.names;
}

std::vector<std::string> input_names(const std::string& spec, const std::vector<std::string>& argument_names,
                                     const NamedTuples& named_tuples) {
  const Json root = root_of(spec);
  const auto children = root.is_object() ? root.find("children_spec") : root.end();
  const bool both = children != root.end() && children->is_array() && children->size() == 2 &&
                    (*children)[0].is_object() && (*children)[0].contains("children_spec");
  if (!both) throw Error("the structure of its inputs is not that of arguments and keyword arguments");
  Leaves leaves(named_tuples);
  const Json& arguments = (*children)[0]["children_spec"];
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    leaves.add(arguments[i], i < argument_names.size() ? argument_names[i] : "argument " + std::to_string(i), 1);
  }
  leaves.add((*children)[1], "", 0);
  return leaves.names;
}

}  // namespace dtrain::exported
