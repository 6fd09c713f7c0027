// JSON from a file that may be hostile: its depth is bounded, and an object finds its keys in a tree, so that a million
// of them take no quadratic time (dtrain::Json keeps their order in a list).
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace dtrain::exported {

using Json = nlohmann::json;

// Error, as the continuation of a sentence about the file: it is no JSON, is nested too deeply, or has too many nodes
// (objects with a key "target"). What only explains where a node came from is left out; it is most of the text.
Json parse_json(const std::string& text);

}  // namespace dtrain::exported
