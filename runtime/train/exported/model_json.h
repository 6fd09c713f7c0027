// Reads JSON from a file that may be hostile: its depth is bounded, and an object keeps its keys in a tree, so that a
// million keys take no quadratic time (dtrain::Json keeps their order in a list).
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace dtrain::exported {

using Json = nlohmann::json;

// Error, to continue a sentence about the file: the text is no JSON, is nested too deeply, or has too many nodes
// (objects with a key "target"). Leaves out explanations of a node's origin, which are most of the text.
Json parse_json(const std::string& text);

// Reads where a node of a graph came from in Python: the lines of its call stack, and the modules whose forward()
// contains the node.
struct CodeLine {
  std::string file;
  std::string number;
  std::string function;
  std::string text;  // without indentation; empty: Python had no source
};

// Returns the lines, outermost call first. A default export (strict=False) has only functions named forward.
std::vector<CodeLine> code_lines(const Json& node);

struct EnteredModule {
  std::string path;        // "layer1.0.conv1"; empty: the model
  std::string class_name;  // "torch.nn.modules.conv.Conv2d"
};

// Returns the modules from the outermost to the innermost. Empty for a node that torch.export added.
std::vector<EnteredModule> entered_modules(const Json& node);

// Returns the text of node["metadata"][key]; empty: there is none.
std::string metadata_text(const Json& node, const char* key);

// Reads the names of a model's inputs and outputs from the structure that torch.export writes as JSON (a "treespec"):
// "logits" in a dict, "0" in a tuple, "state.1" in a tuple in a dict.

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
