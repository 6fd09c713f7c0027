// Reads the names of a model's inputs and outputs from the structure that torch.export writes as JSON (a "treespec"):
// "logits" in a dict, "0" in a tuple, "state.1" in a tuple in a dict.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace dtrain::exported {

// Field names of named tuples, by the names of their types.
using NamedTuples = std::map<std::string, std::vector<std::string>>;

// Returns the names of the leaves in their order. If the tree is a single leaf, its name is "". `spec`: the text in the
// file. Error if it is no treespec.
std::vector<std::string> leaf_names(const std::string& spec, const NamedTuples& named_tuples);

// Returns the names of the inputs of forward(), a tuple of arguments and a dict of keyword arguments. `argument_names`:
// the parameters of forward() in Python, as far as the file has them.
std::vector<std::string> input_names(const std::string& spec, const std::vector<std::string>& argument_names,
                                     const NamedTuples& named_tuples);

}  // namespace dtrain::exported
