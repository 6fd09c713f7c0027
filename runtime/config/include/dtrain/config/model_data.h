// `data` of a `model:` experiment: in which format the samples are, where, and how they are read. Plain values and
// their keys; whether the files exist is not checked here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "dtrain/config/keys.h"
#include "dtrain/data/formats.h"

namespace dtrain::config {

enum class OnDamage : std::uint8_t { kFail, kSkip };
inline constexpr std::array kOnDamage{Word<OnDamage>{"fail", OnDamage::kFail}, Word<OnDamage>{"skip", OnDamage::kSkip}};

// The keys beside data.format.
struct LoaderKeys {
  static constexpr int kAuto = -1;

  int workers = kAuto;
  int prefetch = 2;
  bool pin = true;
  bool shuffle = true;
  bool drop_last = true;
  std::int64_t shuffle_window = 512;  // MB
  OnDamage on_error = OnDamage::kFail;
  std::int64_t max_skipped = 100;
  bool operator==(const LoaderKeys&) const = default;
};

// Reports keys that have no effect beside other keys; what_has_no_effect() is the same as a JSON Schema.
void check_together(Section& section, const LoaderKeys& loader);
Json what_has_no_effect();

template <class Keys>
void declare_keys(Keys& keys, LoaderKeys& l) {
  keys.auto_or_integer({.name = "workers",
                        .text = "Threads of each rank that read and prepare batches. `0`: the training thread does it "
                                "when it needs a batch.",
                        .more = "`auto`: from 1 to as many as the training needs and the rank's cores allow. The "
                                "batches are the same with any number ([data.md](data.md#workers)).",
                        .examples = "[4]"},
                       l.workers, {0, 256}, LoaderKeys::kAuto);
  keys.integer({.name = "prefetch",
                .text = "How many batches are read ahead of the training. `0`: workers read a batch when it is asked "
                        "for."},
               l.prefetch, {0, 1'000});
  keys.boolean({.name = "pin",
                .text = "On GPUs: batches are in page-locked memory, so that they are copied while the GPU computes."},
               l.pin);
  keys.boolean({.name = "shuffle", .text = "Another order of the training samples in each epoch."}, l.shuffle);
  keys.boolean({.name = "drop_last",
                .text = "Leaves out the samples at the end of an epoch that do not fill a global batch. `false`: the "
                        "last batch is short."},
               l.drop_last);
  keys.integer({.name = "shuffle_window",
                .text = "Of data that is read from disk during the training: how much of it is shuffled together.",
                .more = "Greater: more random, and smaller reads ([data.md](data.md#blocks)).",
                .unit = "MB"},
               l.shuffle_window, {1, 1'000'000'000});
  keys.choice({.name = "on_error",
               .text = "What a damaged sample is: an error that ends the run, or replaced by the next good one.",
               .more = "What was left out is counted as the metric skipped_samples "
                       "([data.md](data.md#damaged-samples))."},
              l.on_error, kOnDamage);
  keys.only_with("on_error", kOnDamage, l.on_error, {OnDamage::kSkip}, [&](auto& skip) {
    skip.integer({.name = "max_skipped", .text = "More damaged samples than this in one epoch of a rank end the run."},
                 l.max_skipped, {0, 1'000'000'000});
  });
  keys.when_read([&](Section& section) { check_together(section, l); });
  keys.schema_rule(what_has_no_effect);
}

// The steps for pictures or documents are lists, the keys `transforms` of data.training and data.validation. This is
// one item of such a list.
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
