#include "exported/tree_names.h"

#include <utility>

#include "dtrain/base/error.h"
#include "exported/model_json.h"

namespace dtrain::exported {

namespace {

constexpr int kDeepestTree = 64;
constexpr std::size_t kMostLeaves = 100'000;

std::string name_of_key(const Json& key) {
  return key.is_string() ? key.get<std::string>() : key.dump();
}

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
    for (const Json& key : keys) names.push_back(name_of_key(key));
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
