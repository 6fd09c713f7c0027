// Reads where a node of a graph came from in Python: the lines of its call stack, and the modules whose forward()
// contains the node.
#pragma once

#include <string>
#include <vector>

#include "exported/model_json.h"

namespace dtrain::exported {

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

}  // namespace dtrain::exported
