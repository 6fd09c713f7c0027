// Reads JSON from a file that may be hostile: its depth is bounded, and an object keeps its keys in a tree, so that a
// million keys take no quadratic time (dtrain::Json keeps their order in a list).
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace dtrain::exported {

using Json = nlohmann::json;

// Error, to continue a sentence about the file: the text is no JSON, is nested too deeply, or has too many nodes
// (objects with a key "target"). Leaves out explanations of a node's origin, which are most of the text.
Json parse_json(const std::string& text);

}  // namespace dtrain::exported
