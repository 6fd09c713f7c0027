// What the file says of the Python code that made a node of a graph: the lines of its call stack, and the modules whose
// forward() it belongs to.
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

// From the outermost call to the innermost. Exported as usual (strict=False), of functions named forward alone.
std::vector<CodeLine> code_lines(const Json& node);

struct EnteredModule {
  std::string path;        // "layer1.0.conv1"; empty: the model
  std::string class_name;  // "torch.nn.modules.conv.Conv2d"
};

// From the outermost module to the innermost. Empty for a node that torch.export has added itself.
std::vector<EnteredModule> entered_modules(const Json& node);

// The text of node["metadata"][key]; empty: there is none.
std::string metadata_text(const Json& node, const char* key);

}  // namespace dtrain::exported
