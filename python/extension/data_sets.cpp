#include "data_sets.h"

#include <utility>

#include <pybind11/stl.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/data/formats.h"

namespace dtrain::python {

namespace py = pybind11;

namespace {

data::Format format_named(const std::string& word) {
  const std::vector<std::string> words = words_of<data::Format>();
  if (std::find(words.begin(), words.end(), word) == words.end()) {
    throw ConfigError("there is no data format '" + word + "'", "the formats are " + join(words, ", "));
  }
  return choice_named<data::Format>(word);
}

void read_settings(data::Format& format, const py::dict& settings) {
  for (const auto& [key, value] : settings) {
    const std::string name = py::cast<std::string>(key);
    auto* const tokens = std::get_if<data::Tokens>(&format);
    auto* const tensors = std::get_if<data::Safetensors>(&format);
    if (tokens && name == "sequence_length") {
      tokens->sequence_length = py::cast<std::int64_t>(value);
    } else if (tokens && name == "token_type") {
      const std::string type = py::cast<std::string>(value);
      const auto known = std::find_if(data::kTokenTypes.begin(), data::kTokenTypes.end(),
                                      [&](const auto& one) { return one.first == type; });
      if (known == data::kTokenTypes.end()) throw ConfigError("there is no token_type '" + type + "'");
      tokens->token_type = known->second;
    } else if (tensors && name == "more_inputs") {
      tensors->more_inputs = py::cast<std::vector<std::string>>(value);
    } else {
      throw ConfigError("this data format has no setting '" + name + "'");
    }
  }
  if (const auto* tokens = std::get_if<data::Tokens>(&format); tokens && tokens->sequence_length < 1) {
    throw ConfigError("tokens need a sequence_length of at least 1");
  }
}

// With the paths resolved, and all keys of the format.
data::Source source_of(const data::Format& format, const TrialContext& context,
                       std::map<std::string, std::string> files) {
  data::Source source;
  std::vector<std::string> names;
  for (const data::SourceKey& key : data::source_keys(format)) {
    names.emplace_back(key.name);
    const auto given = files.extract(key.name);
    if (given.empty() && std::string(key.fallback).empty()) {
      throw ConfigError(std::string("the data set needs '") + key.name + "': " + key.text);
    }
    const std::string value = given.empty() ? key.fallback : given.mapped();
    source[key.name] = key.is_file ? context.resolve(value).string() : value;
  }
  if (!files.empty()) {
    throw ConfigError("this data format has no '" + files.begin()->first + "'", "it has " + join(names, ", "));
  }
  return source;
}

}  // namespace

Loader open_data_set(TrialContext& context, const std::string& word, std::map<std::string, std::string> files,
                     const py::dict& settings, const LoaderSettings& loader) {
  data::Format format = format_named(word);
  read_settings(format, settings);
  const data::Source source = source_of(format, context, std::move(files));
  const py::gil_scoped_release unlocked;
  return context.loader(data::open_source(format, source, {}, context.host_share()), loader);
}

}  // namespace dtrain::python
