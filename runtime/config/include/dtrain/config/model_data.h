// `data` of a `model:` experiment: in which format the samples are, and where. Plain values and their keys; whether the
// files exist is not checked here.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "dtrain/config/keys.h"
#include "dtrain/config/loader_keys.h"
#include "dtrain/data/formats.h"

namespace dtrain::config {

// The steps for pictures or documents: the keys `transforms` of data.training and data.validation.

// One item of such a list.
struct TransformStep {
  data::Transform transform;
  bool operator==(const TransformStep&) const = default;
};

struct SourceTransforms {
  std::vector<TransformStep> training, validation;
  bool operator==(const SourceTransforms&) const = default;
};

std::vector<data::Transform> transforms_of(const std::vector<TransformStep>& steps);

void declare_keys(Keys& keys, TransformStep& step);

// The samples of a format, of which `transforms` make tensors.
enum class TransformsOf { kNothing, kPictures, kDocuments };

// Declares the key `transforms` of one source. kNothing: of any format, for the documents.
void declare_transforms(Keys& keys, std::vector<TransformStep>& steps, TransformsOf samples);
// Returns the rules of a schema for `transforms` in one format.
Json rules_of_transforms(TransformsOf samples);

// `List`: a variant of formats, as data::Format.
template <class List>
struct DataOf {
  List format;
  data::Source training;
  std::optional<data::Source> validation;
  LoaderKeys loader{};
  SourceTransforms transforms{};  // of formats of pictures or documents
  bool operator==(const DataOf&) const = default;
};
using ModelData = DataOf<data::Format>;

// Reads a `data` section that no file has: a program gives it as JSON (dtrain.data.Loader of Python does). Checks it as
// that of an experiment; relative paths start from `folder`. ConfigError with all errors: "key: message", one a line.
ModelData read_data_section(const Json& section, const std::filesystem::path& folder);
// Returns the names of the keys that belong under `training` and `validation`.
std::vector<std::string> keys_of_sources();

// The sources of one of a list's formats.
struct FormatSources {
  const char* word;
  const char* text;
  std::span<const data::SourceKey> keys;
  TransformsOf transforms = TransformsOf::kNothing;
};

// Declares the key of the format through `declare_format`, and then those of the sources. `chosen`: the current format.
void declare_data(Keys& keys, const std::vector<FormatSources>& formats, std::size_t chosen,
                  const std::function<void(Keys&, const Key& selector)>& declare_format, data::Source& training,
                  std::optional<data::Source>& validation, SourceTransforms& transforms);

template <class OneFormat>
inline constexpr TransformsOf kTransformsOf = data::kHasPictures<OneFormat>    ? TransformsOf::kPictures
                                              : data::kHasDocuments<OneFormat> ? TransformsOf::kDocuments
                                                                               : TransformsOf::kNothing;

template <class... Formats>
void declare_keys(Keys& keys, DataOf<std::variant<Formats...>>& d) {
  const std::vector<FormatSources> formats{
      FormatSources{Formats::kWord, Formats::kText, Formats::kSource, kTransformsOf<Formats>}...};
  const auto declare_format = [&](Keys& outside, const Key& selector) { outside.one_of(selector, d.format); };
  declare_data(keys, formats, d.format.index(), declare_format, d.training, d.validation, d.transforms);
  declare_keys(keys, d.loader);
}

}  // namespace dtrain::config
