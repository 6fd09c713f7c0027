// The list of data formats. Each format is a struct: the word that names it in an experiment (`data.format`), the keys
// of its sources, its settings, and open(), which runtime/data/formats/NAME.cpp defines. To add a format, add a struct
// here, its file there, and a description in docs/experiment.md.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/base/choices.h"
#include "dtrain/base/error.h"
#include "dtrain/data/data_sets.h"
#include "dtrain/data/dataset.h"
#include "dtrain/data/sample.h"
#include "dtrain/data/transforms.h"

namespace dtrain::data {

// The place of the samples of training or of validation: the value of each source key of the format. Relative paths
// start from the folder of the experiment file.
using Source = std::map<std::string, std::string>;

// A key of a source in one format. Formats with the same name for a key share this key of the experiment file.
struct SourceKey {
  const char* name;
  const char* text;                // what the key means in this format; the documents show it
  const char* must_be;             // what a value must be, for errors: "the path of an IDX file"
  bool is_file = true;             // false: any text
  const char* fallback = "";       // the value of a missing key; "": the key is required
  const char* examples = nullptr;  // good values, as a JSON list
};

inline constexpr const char* kOneOfTwoFiles =
    "a file, relative to this file's folder, or a pattern of several (`part-*.npy`), in the order of their names.";
inline constexpr const char* kTheFile =
    "the file, relative to this file's folder, or a pattern of several (`part-*`), in the order of their names.";

// The place of a file's samples during training.
enum class InMemory : std::uint8_t { kAuto, kAlways, kNever };
inline constexpr std::array kInMemory{std::pair{"auto", InMemory::kAuto}, std::pair{"always", InMemory::kAlways},
                                      std::pair{"never", InMemory::kNever}};
inline constexpr std::uint64_t kMostInMemory = std::uint64_t{1} << 30;  // larger files stay on the disk with kAuto

template <class Keys>
void declare_in_memory(Keys& keys, InMemory& in_memory) {
  keys.choice({.name = "in_memory",
               .text = "Whether files are read into memory, once for all ranks of a host, or sample by sample while "
                       "training. `auto`: files of more than 1 GiB are read while training, others into memory."},
              in_memory, kInMemory);
}

// The setting of every format with features that may be scaled.
template <class Keys>
void declare_scale(Keys& keys, std::optional<double>& scale) {
  keys.number(
      {.name = "scale",
       .text =
           "The features are converted to floating point and multiplied by this. Default: 1/255 for uint8 features; "
           "other whole numbers stay as they are, and floating-point features get the model's type. Not with tokens.",
       .examples = "[1]"},
      scale, {.min = 0, .max = 0, .above_min = true, .open = true, .real = true});
}

// IDX files (dtrain/data/data_sets.h).
struct Idx {
  static constexpr const char* kWord = "idx";
  // The contents of a source, for the documents.
  static constexpr const char* kText = "one file for the features, one for the target.";
  static constexpr std::array kSource{SourceKey{.name = "features",
                                                .text = kOneOfTwoFiles,
                                                .must_be = "the path of an IDX file",
                                                .examples = R"(["train-images-idx3-ubyte.gz"])"},
                                      SourceKey{.name = "target",
                                                .text = kOneOfTwoFiles,
                                                .must_be = "the path of an IDX file",
                                                .examples = R"(["train-labels-idx1-ubyte.gz"])"}};
  // True if features with the shape [H, W] for a sample are images, which the model gets as [1, H, W].
  static constexpr bool kImages = true;

  // Features become floating point and are multiplied by this. Missing: uint8 is multiplied by 1/255, other integers
  // are not changed.
  std::optional<double> scale;

  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_scale(keys, scale);
  }
  // Opens a source; in every struct. Field 0 of the data set is the features, field 1 the target. `source` must have a
  // value for every key of kSource (else std::out_of_range). DataError: those of the function that reads the format's
  // files. Collective over the ranks of a host, like HostShare.
  std::shared_ptr<Dataset> open(const Source& source, const HostShare& share) const;
  bool operator==(const Idx&) const = default;
};

// Arrays that numpy.save wrote (dtrain/data/data_sets.h).
struct Npy {
  static constexpr const char* kWord = "npy";
  static constexpr const char* kText = "one file for the features, one for the target.";
  static constexpr std::array kSource{
      SourceKey{.name = "features", .text = kOneOfTwoFiles, .must_be = "the path of a .npy file"},
      SourceKey{.name = "target", .text = kOneOfTwoFiles, .must_be = "the path of a .npy file"}};

  std::optional<double> scale;
  InMemory in_memory = InMemory::kAuto;

  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_scale(keys, scale);
    declare_in_memory(keys, in_memory);
  }
  std::shared_ptr<Dataset> open(const Source& source, const HostShare& share) const;
  bool operator==(const Npy&) const = default;
};

// Tensors of a safetensors file (dtrain/data/safetensors.h): features, target, and further inputs.
struct Safetensors {
  static constexpr const char* kWord = "safetensors";
  static constexpr const char* kText = "one file with two tensors or more.";
  static constexpr std::array kSource{SourceKey{.name = "file",
                                                .text = kTheFile,
                                                .must_be = "the path of a .safetensors file",
                                                .examples = R"(["train.safetensors"])"},
                                      SourceKey{.name = "features",
                                                .text = "the name of a tensor (features).",
                                                .must_be = "the name of a tensor in the file",
                                                .is_file = false,
                                                .fallback = "features"},
                                      SourceKey{.name = "target",
                                                .text = "the name of a tensor (target).",
                                                .must_be = "the name of a tensor in the file",
                                                .is_file = false,
                                                .fallback = "target"}};

  std::optional<double> scale;
  std::vector<std::string> more_inputs;  // fields 2 and on of the data set
  InMemory in_memory = InMemory::kAuto;

  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_scale(keys, scale);
    keys.texts({.name = "more_inputs",
                .text = "safetensors: the names of further tensors, which forward() gets after the features, in this "
                        "order. Floating point gets the model's type; other numbers stay as they are.",
                .examples = R"([["attention_mask"]])"},
               more_inputs);
    declare_in_memory(keys, in_memory);
  }
  std::shared_ptr<Dataset> open(const Source& source, const HostShare& share) const;
  bool operator==(const Safetensors&) const = default;
};

inline constexpr std::array kTokenTypes{std::pair{"uint16", TokenType::kUint16},
                                        std::pair{"uint32", TokenType::kUint32}, std::pair{"int32", TokenType::kInt32},
                                        std::pair{"int64", TokenType::kInt64}};

// A flat file of token ids (dtrain/data/data_sets.h). The target is each position's next token.
struct Tokens {
  static constexpr const char* kWord = "tokens";
  static constexpr const char* kText = "one sequence of numbers without a header.";
  static constexpr std::array kSource{
      SourceKey{.name = "file", .text = kTheFile, .must_be = "the path of a file of tokens"}};
  // True if a sample is a sequence with a target at each of its positions; the loss must take sequences then.
  static constexpr bool kSequences = true;

  TokenType token_type = TokenType::kUint16;
  std::int64_t sequence_length = 0;  // at least 1

  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.choice({"token_type", "tokens: the type of each number in the file, little-endian."}, token_type, kTokenTypes);
    keys.integer({.name = "sequence_length",
                  .text = "tokens: the number of tokens in one sample. With the transform pad_to_longest, the most of "
                          "them: longer documents become several samples.",
                  .examples = "[128]",
                  .required = "the tokens of a sample"},
                 sequence_length, {1, std::numeric_limits<std::int32_t>::max()});
  }
  std::shared_ptr<Dataset> open(const Source& source, const HostShare& share) const;
  // Opens a source with transforms, in formats of documents: the documents are padded or packed.
  std::shared_ptr<Dataset> open_documents(const Source& source, std::span<const Transform> transforms,
                                          const HostShare& share) const;
  bool operator==(const Tokens&) const = default;
};

inline constexpr std::array kElementTypes{
    std::pair{"uint8", ElementType::kUint8}, std::pair{"int32", ElementType::kInt32},
    std::pair{"int64", ElementType::kInt64}, std::pair{"float32", ElementType::kFloat32},
    std::pair{"float64", ElementType::kFloat64}};

// Arrays without a header (dtrain/data/data_sets.h).
struct Raw {
  static constexpr const char* kWord = "raw";
  static constexpr const char* kText = "one file for the features, one for the target, without a header.";
  static constexpr std::array kSource{
      SourceKey{.name = "features", .text = kOneOfTwoFiles, .must_be = "the path of a file of numbers"},
      SourceKey{.name = "target", .text = kOneOfTwoFiles, .must_be = "the path of a file of numbers"}};

  ElementType features_type = ElementType::kFloat32, target_type = ElementType::kInt64;
  std::vector<std::int64_t> features_shape, target_shape;  // of a sample
  std::optional<double> scale;

  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.choice({"features_type", "raw: the type of each number of the features, little-endian."}, features_type,
                kElementTypes);
    keys.integers({.name = "features_shape",
                   .text = "raw: the shape of one sample's features.",
                   .examples = "[[3, 224, 224]]",
                   .required = "the shape of a sample"},
                  features_shape, {1, kMostExtent});
    keys.choice({"target_type", "raw: the type of each number of the target, little-endian."}, target_type,
                kElementTypes);
    keys.integers({.name = "target_shape", .text = "raw: the shape of one sample's target; `[]`: a number."},
                  target_shape, {1, kMostExtent});
    declare_scale(keys, scale);
  }
  std::shared_ptr<Dataset> open(const Source& source, const HostShare& share) const;
  bool operator==(const Raw&) const = default;

  static constexpr std::int64_t kMostExtent = std::numeric_limits<std::int32_t>::max();
};

enum class CsvDelimiter : std::uint8_t { kComma, kSemicolon, kTab };
inline constexpr std::array kCsvDelimiters{std::pair{"comma", CsvDelimiter::kComma},
                                           std::pair{"semicolon", CsvDelimiter::kSemicolon},
                                           std::pair{"tab", CsvDelimiter::kTab}};
enum class CsvTarget : std::uint8_t { kClass, kNumber };
inline constexpr std::array kCsvTargets{std::pair{"class", CsvTarget::kClass}, std::pair{"number", CsvTarget::kNumber}};

// Tables of numbers as text (dtrain/data/data_sets.h).
struct Csv {
  static constexpr const char* kWord = "csv";
  static constexpr const char* kText = "one table, a line for each sample; all columns but the target are features.";
  static constexpr std::array kSource{SourceKey{
      .name = "file", .text = kTheFile, .must_be = "the path of a .csv file", .examples = R"(["train.csv"])"}};

  bool header = true;
  CsvDelimiter delimiter = CsvDelimiter::kComma;
  std::string target_column;
  CsvTarget target_is = CsvTarget::kClass;
  std::optional<double> scale;

  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.boolean({"header", "csv: whether the first line names the columns."}, header);
    keys.choice({"delimiter", "csv: what is between two columns."}, delimiter, kCsvDelimiters);
    keys.text({.name = "target_column",
               .text = "csv: the column of the target: its name, or its number from 1 on.",
               .examples = R"(["label"])",
               .default_text = "the last column"},
              target_column);
    keys.choice({"target_is", "csv: whether the target is a class, a whole number from 0 on, or any number (float32)."},
                target_is, kCsvTargets);
    declare_scale(keys, scale);
  }
  std::shared_ptr<Dataset> open(const Source& source, const HostShare& share) const;
  bool operator==(const Csv&) const = default;
};

// The setting of the formats of pictures.
template <class Keys>
void declare_scaled_decoding(Keys& keys, bool& scaled_decoding) {
  keys.boolean({.name = "scaled_decoding",
                .text = "image_folder, shards: JPEGs are decoded at a half, a quarter or an eighth of their size where "
                        "the transforms need no more. Faster, and pixels differ a little.",
                .more = "[More](data.md#scaled-decoding)."},
               scaled_decoding);
}

// Pictures in a folder for each class (dtrain/data/image_folder.h).
struct ImageFolder {
  static constexpr const char* kWord = "image_folder";
  static constexpr const char* kText = "JPEG and PNG files in a folder for each class.";
  static constexpr std::array kSource{SourceKey{.name = "folder",
                                                .text = "the folder with a folder for each class.",
                                                .must_be = "the path of a folder",
                                                .examples = R"(["train"])"}};

  bool scaled_decoding = false;

  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_scaled_decoding(keys, scaled_decoding);
  }
  // Replaces open() in formats of pictures: returns the pictures' bytes and their classes, for transformed().
  std::shared_ptr<SampleSource> open_samples(const Source& source, const HostShare& share) const;
  bool operator==(const ImageFolder&) const = default;
};

// Tar shards as WebDataset writes them (dtrain/data/shards.h).
struct Shards {
  static constexpr const char* kWord = "shards";
  static constexpr const char* kText = "tar files of pictures and classes, as WebDataset writes them.";
  static constexpr std::array kSource{
      SourceKey{.name = "files",
                .text = "the shards: a path in which * and ? stand for any letters, and {000..146} for numbers.",
                .must_be = "a path of tar files",
                .examples = R"(["train-*.tar", "train-{000..146}.tar"])"}};

  bool scaled_decoding = false;

  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_scaled_decoding(keys, scaled_decoding);
  }
  std::shared_ptr<SampleSource> open_samples(const Source& source, const HostShare& share) const;
  bool operator==(const Shards&) const = default;
};

// True if samples are files of pictures, which transforms turn into tensors.
template <class OneFormat>
inline constexpr bool kHasPictures = requires(const OneFormat& format, const Source& source, const HostShare& share) {
  format.open_samples(source, share);
};

// True if samples may be documents, which transforms pad or pack.
template <class OneFormat>
inline constexpr bool kHasDocuments = requires(const OneFormat& format, const Source& source,
                                               const std::vector<Transform>& transforms, const HostShare& share) {
  format.open_documents(source, transforms, share);
};

using Format = std::variant<Idx, Npy, Safetensors, Tokens, Raw, Csv, ImageFolder, Shards>;

// Opens a source. Formats of pictures make their tensors by `transforms`, and those of documents their samples.
// DataError for transforms of any other format.
template <class... Formats>
std::shared_ptr<Dataset> open_source(const std::variant<Formats...>& format, const Source& source,
                                     const std::vector<Transform>& transforms, const HostShare& share) {
  return std::visit(
      [&](const auto& held) -> std::shared_ptr<Dataset> {
        if constexpr (kHasPictures<std::decay_t<decltype(held)>>) {
          return transformed(held.open_samples(source, share), transforms, {.scaled_decoding = held.scaled_decoding});
        } else {
          if (transforms.empty()) return held.open(source, share);
          if constexpr (kHasDocuments<std::decay_t<decltype(held)>>) {
            return held.open_documents(source, transforms, share);
          } else {
            throw DataError(std::string("transforms have no effect with format ") + held.kWord);
          }
        }
      },
      format);
}

// Properties of the format that the variant holds:

template <class... Formats>
std::span<const SourceKey> source_keys(const std::variant<Formats...>& format) {
  return std::visit([](const auto& held) { return std::span<const SourceKey>(held.kSource); }, format);
}

template <class... Formats>
bool has_sequences(const std::variant<Formats...>& format) {
  return std::visit(
      [](const auto& held) {
        if constexpr (requires { held.kSequences; }) return held.kSequences;
        return false;
      },
      format);
}

// The words of the formats whose samples are sequences.
inline std::vector<std::string> formats_of_sequences() {
  std::vector<std::string> words;
  for (const std::string& word : words_of<Format>()) {
    if (has_sequences(choice_named<Format>(word))) words.push_back(word);
  }
  return words;
}

}  // namespace dtrain::data
