// Names of the tensors that a model takes and returns, from the structure that torch.export writes as JSON (a
// "treespec"): "logits" of a dict, "0" of a tuple, "state.1" of a tuple in a dict.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace dtrain::exported {

// Field names of named tuples, by the names of their types.
using NamedTuples = std::map<std::string, std::vector<std::string>>;

// The names of the leaves in their order. The only leaf of a tree that is one leaf has the name "". `spec`: the text in
// the file. Error if it is no treespec.
std::vector<std::string> leaf_names(const std::string& spec, const NamedTuples& named_tuples);

// The same for what forward() takes: a tuple of arguments and a dict of keyword arguments. `argument_names`: of
// forward() in Python, as far as the file has them.
std::vector<std::string> input_names(const std::string& spec, const std::vector<std::string>& argument_names,
                                     const NamedTuples& named_tuples);

}  // namespace dtrain::exported
