// The list of transforms. Each is a struct: the word that names it in an experiment (`data.training.transforms`), its
// settings and their keys. Plain values. Those of pictures have the names, meanings and defaults of
// torchvision.transforms.v2; runtime/data/images/pipeline.cpp carries them out, and transformed() makes a data set.
// Those of documents of tokens are carried out by runtime/data/documents.cpp (dtrain/data/documents.h).
//
// Random ones draw from a stream of (seed, epoch, index of the sample), so the result does not depend on workers, ranks
// or what was read before.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "dtrain/base/choices.h"
#include "dtrain/data/sample.h"

namespace dtrain::data {

// The object that a transform changes. The transforms of pictures have this order.
enum class TransformStage : std::uint8_t {
  kPicture,   // one picture of bytes
  kNumbers,   // one picture, which becomes floating point
  kBatch,     // a whole batch of pictures
  kDocuments  // documents of tokens, which become samples: no transform of pictures
};

inline constexpr std::int64_t kMostSide = 1 << 14;

// The setting of transforms after which all pictures have one size.
template <class Keys>
void declare_size(Keys& keys, std::int64_t& size, std::optional<std::int64_t>& width) {
  keys.integer({.name = "size",
                .text = "center_crop, random_crop, random_resized_crop: the height of the result, and its width where "
                        "there is no width. resize: the length of the shorter side; with a width, the height.",
                .examples = "[224]",
                .required = "the size of the result"},
               size, {1, kMostSide});
  keys.integer({.name = "width",
                .text = "The width of the result; null: as high as wide (resize: in the picture's proportions).",
                .default_text = "null"},
               width, {1, kMostSide});
}

// Resizes to a size: bilinear, antialiased. With `size` alone the shorter side gets this length, and the picture keeps
// its proportions.
struct Resize {
  static constexpr const char* kWord = "resize";
  static constexpr TransformStage kStage = TransformStage::kPicture;
  std::int64_t size = 0;
  std::optional<std::int64_t> width;
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_size(keys, size, width);
  }
  bool operator==(const Resize&) const = default;
};

// Takes the middle of a picture. A smaller picture gets black edges.
struct CenterCrop {
  static constexpr const char* kWord = "center_crop";
  static constexpr TransformStage kStage = TransformStage::kPicture;
  std::int64_t size = 0;
  std::optional<std::int64_t> width;
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_size(keys, size, width);
  }
  bool operator==(const CenterCrop&) const = default;
};

// Resizes a part of random area and proportions. After ten tries that do not fit, takes the largest part in the middle
// with allowed proportions.
struct RandomResizedCrop {
  static constexpr const char* kWord = "random_resized_crop";
  static constexpr TransformStage kStage = TransformStage::kPicture;
  std::int64_t size = 0;
  std::optional<std::int64_t> width;
  double min_area = 0.08, max_area = 1;
  double min_ratio = 3.0 / 4, max_ratio = 4.0 / 3;
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_size(keys, size, width);
    keys.number({"min_area", "random_resized_crop: the smallest part of the picture's area."}, min_area,
                {.min = 0, .max = 1, .above_min = true});
    keys.number({"max_area", "random_resized_crop: the largest part of the picture's area."}, max_area,
                {.min = 0, .max = 1, .above_min = true});
    keys.number({.name = "min_ratio",
                 .text = "random_resized_crop: the smallest ratio of width to height.",
                 .default_text = "3/4"},
                min_ratio, {.min = 0.01, .max = 1});
    keys.number({.name = "max_ratio",
                 .text = "random_resized_crop: the largest ratio of width to height.",
                 .default_text = "4/3"},
                max_ratio, {.min = 1, .max = 100});
  }
  bool operator==(const RandomResizedCrop&) const = default;
};

// Takes a part at a random place, after adding `padding` black pixels on each side.
struct RandomCrop {
  static constexpr const char* kWord = "random_crop";
  static constexpr TransformStage kStage = TransformStage::kPicture;
  std::int64_t size = 0;
  std::optional<std::int64_t> width;
  std::int64_t padding = 0;
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_size(keys, size, width);
    keys.integer({"padding", "random_crop: black pixels that are added on each side first."}, padding, {0, kMostSide});
  }
  bool operator==(const RandomCrop&) const = default;
};

struct HorizontalFlip {
  static constexpr const char* kWord = "horizontal_flip";
  static constexpr TransformStage kStage = TransformStage::kPicture;
  double probability = 0.5;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"probability", "horizontal_flip: how probable it is that left and right are exchanged."}, probability,
                {.min = 0, .max = 1});
  }
  bool operator==(const HorizontalFlip&) const = default;
};

// Brightness, contrast and saturation are multiplied by a factor from 1 - x to 1 + x, hue is shifted by -x to x of the
// colour circle, in a random order.
struct ColorJitter {
  static constexpr const char* kWord = "color_jitter";
  static constexpr TransformStage kStage = TransformStage::kPicture;
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"brightness", "color_jitter: brightness is multiplied by 1 - this to 1 + this, at least 0."},
                brightness, {.min = 0, .max = 100});
    keys.number({"contrast", "color_jitter: the same for contrast."}, contrast, {.min = 0, .max = 100});
    keys.number({"saturation", "color_jitter: the same for saturation."}, saturation, {.min = 0, .max = 100});
    keys.number({"hue", "color_jitter: hue is shifted by up to this part of the colour circle."}, hue,
                {.min = 0, .max = 0.5});
  }
  bool operator==(const ColorJitter&) const = default;
};

// Makes float32: (value / 255 - mean) / std, for red, green and blue. The defaults are the means of ImageNet.
struct Normalize {
  static constexpr const char* kWord = "normalize";
  static constexpr TransformStage kStage = TransformStage::kNumbers;
  std::array<double, 3> mean{0.485, 0.456, 0.406};
  std::array<double, 3> std{0.229, 0.224, 0.225};
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.numbers(
        {"mean", "normalize: what is subtracted from red, green and blue, which are 0 to 1. Default: ImageNet's."},
        mean, {.min = -1000, .max = 1000});
    keys.numbers({"std", "normalize: what the differences are divided by. Default: ImageNet's."}, std,
                 {.min = 0, .max = 1000, .above_min = true});
  }
  bool operator==(const Normalize&) const = default;
};

template <class Keys>
void declare_mixing(Keys& keys, double& alpha, std::int64_t& classes) {
  keys.number({.name = "alpha",
               .text = "mixup, cutmix: the share of the other sample follows the distribution Beta(alpha, alpha).",
               .default_text = "1"},
              alpha, {.min = 0, .max = 1000, .above_min = true});
  keys.integer({.name = "classes",
                .text = "mixup, cutmix: the number of classes. Targets become probabilities, float32 [N, classes].",
                .required = "the number of classes"},
               classes, {2, 1'000'000});
}

// Each sample of a batch becomes the weighted mean of itself and of the one before it (Zhang et al. 2018). The batch is
// that of a rank.
struct MixUp {
  static constexpr const char* kWord = "mixup";
  static constexpr TransformStage kStage = TransformStage::kBatch;
  double alpha = 1;
  std::int64_t classes = 0;
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_mixing(keys, alpha, classes);
  }
  bool operator==(const MixUp&) const = default;
};

// Each sample gets a rectangle of the one before it (Yun et al. 2019).
struct CutMix {
  static constexpr const char* kWord = "cutmix";
  static constexpr TransformStage kStage = TransformStage::kBatch;
  double alpha = 1;
  std::int64_t classes = 0;
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_mixing(keys, alpha, classes);
  }
  bool operator==(const CutMix&) const = default;
};

// The settings that both transforms of documents have.
template <class Keys>
void declare_documents(Keys& keys, std::int64_t& end_token, std::int64_t& pad_token, std::int64_t& pad_target) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::uint32_t>::max();
  constexpr std::int64_t kLeast = std::numeric_limits<std::int32_t>::min();
  keys.integer({.name = "end_token",
                .text = "pad_to_longest, pack_tokens: the token at the end of each document in the file. "
                        "`dtrain data pack` writes 256.",
                .examples = "[256, 50256]",
                .required = "the token at the end of each document"},
               end_token, {0, kLargest});
  keys.integer({"pad_token", "pad_to_longest, pack_tokens: the feature in padding."}, pad_token, {0, kLargest});
  keys.integer({"pad_target",
                "pad_to_longest, pack_tokens: the target in padding, and in a packed row at each end token. A loss "
                "cross_entropy must have it as its ignore_index."},
               pad_target, {kLeast, std::numeric_limits<std::int32_t>::max()});
}

// Documents of tokens as samples of unequal length, each padded at its end to the longest of the batch of a rank.
struct PadToLongest {
  static constexpr const char* kWord = "pad_to_longest";
  static constexpr TransformStage kStage = TransformStage::kDocuments;
  std::int64_t end_token = 0;
  std::int64_t pad_token = 0;
  std::int64_t pad_target = -100;
  std::int64_t multiple_of = 1;
  bool mask = false, lengths = false;
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_documents(keys, end_token, pad_token, pad_target);
    keys.integer({"multiple_of",
                  "pad_to_longest: the length of a batch is rounded up to a multiple of this, at most to "
                  "data.sequence_length. With as much as that all batches have this length."},
                 multiple_of, {1, std::numeric_limits<std::int32_t>::max()});
    keys.boolean({"mask",
                  "pad_to_longest: forward() gets, after the features, which positions are tokens (1) and which are "
                  "padding (0): int64 [N, L]."},
                 mask);
    keys.boolean({"lengths",
                  "pad_to_longest: forward() gets, after the features (and the mask), the number of positions of each "
                  "sample that are no padding: int64 [N]."},
                 lengths);
  }
  std::vector<std::string> more_inputs() const {
    std::vector<std::string> names;
    if (mask) names.emplace_back("mask");
    if (lengths) names.emplace_back("lengths");
    return names;
  }
  bool operator==(const PadToLongest&) const = default;
};

// Rows of one length, each of as many whole documents of tokens as fit, in the order of the file.
struct PackTokens {
  static constexpr const char* kWord = "pack_tokens";
  static constexpr TransformStage kStage = TransformStage::kDocuments;
  std::int64_t end_token = 0;
  std::int64_t pad_token = 0;
  std::int64_t pad_target = -100;
  bool positions = false, documents = false;
  template <class Keys>
  void declare_keys(Keys& keys) {
    declare_documents(keys, end_token, pad_token, pad_target);
    keys.boolean({"positions",
                  "pack_tokens: forward() gets, after the features, each position's place within its document (or the "
                  "piece of a long one), from 0: int64 [N, L]."},
                 positions);
    keys.boolean({"documents",
                  "pack_tokens: forward() gets, after the features (and the positions), the number of each position's "
                  "document within its row, from 0, and -1 in padding: int64 [N, L]."},
                 documents);
  }
  std::vector<std::string> more_inputs() const {
    std::vector<std::string> names;
    if (positions) names.emplace_back("positions");
    if (documents) names.emplace_back("documents");
    return names;
  }
  bool operator==(const PackTokens&) const = default;
};

using Transform = std::variant<Resize, CenterCrop, RandomResizedCrop, RandomCrop, HorizontalFlip, ColorJitter,
                               Normalize, MixUp, CutMix, PadToLongest, PackTokens>;

// The functions that the reader of experiment files needs, too, have no code outside this header.

struct PictureSize {
  std::int64_t width = 0, height = 0;
};

// Returns a size with a shorter side of this length, in the same proportions.
inline PictureSize resized(const PictureSize& size, std::int64_t shorter) {
  const auto other = [&](std::int64_t longer, std::int64_t by) {
    return std::min(shorter * longer / by, kMostSide * 8);
  };
  return size.width <= size.height ? PictureSize{shorter, other(size.height, size.width)}
                                   : PictureSize{other(size.width, size.height), shorter};
}

inline TransformStage stage_of(const Transform& transform) {
  return std::visit([](const auto& held) { return held.kStage; }, transform);
}

// Returns the size of pictures after the transform; empty: pictures may have any size.
inline std::optional<PictureSize> size_after(const Transform& transform, std::optional<PictureSize> size) {
  return std::visit(
      [&](const auto& held) -> std::optional<PictureSize> {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, Resize>) {
          if (held.width) return PictureSize{*held.width, held.size};
          return size ? std::optional(resized(*size, held.size)) : std::nullopt;
        } else if constexpr (requires { held.size; }) {
          return PictureSize{held.width.value_or(held.size), held.size};
        } else {
          return size;
        }
      },
      transform);
}

inline std::optional<PictureSize> size_after(std::span<const Transform> transforms) {
  std::optional<PictureSize> size;
  for (const Transform& transform : transforms) size = size_after(transform, size);
  return size;
}

// The reason why a list of transforms cannot be applied. `at`: the number of the transform.
struct TransformProblem {
  std::string what;
  std::size_t at = 0;
};
// Returns the problem of a list for pictures; empty: none.
inline std::optional<TransformProblem> problem_of(std::span<const Transform> transforms) {
  std::optional<std::size_t> normalize;
  std::optional<std::int64_t> classes;
  for (std::size_t i = 0; i < transforms.size(); ++i) {
    const std::string word = word_of(transforms[i]);
    if (stage_of(transforms[i]) == TransformStage::kDocuments) {
      return TransformProblem{word + " is for documents of tokens, and these are pictures", i};
    }
    if (std::holds_alternative<Normalize>(transforms[i])) {
      if (normalize) return TransformProblem{"normalize stands here twice", i};
      normalize = i;
    }
    const auto* const mixup = std::get_if<MixUp>(&transforms[i]);
    const auto* const cutmix = std::get_if<CutMix>(&transforms[i]);
    if (mixup != nullptr || cutmix != nullptr) {
      const std::int64_t own = mixup != nullptr ? mixup->classes : cutmix->classes;
      if (classes && *classes != own) {
        return TransformProblem{word + " has classes: " + std::to_string(own) + ", and the one before it has " +
                                    std::to_string(*classes) + ": both mix the same labels",
                                i};
      }
      classes = own;
    }
    if (i > 0 && stage_of(transforms[i]) < stage_of(transforms[i - 1])) {
      return TransformProblem{word + " cannot come after " + word_of(transforms[i - 1]) +
                                  ": transforms of pictures come first, then normalize, then mixup and cutmix",
                              i};
    }
  }
  if (size_after(transforms)) return std::nullopt;
  return TransformProblem{
      "pictures have many sizes, and a batch needs one: add center_crop, random_crop, random_resized_crop, or a resize "
      "with a width",
      transforms.empty() ? 0 : transforms.size() - 1};
}

// Returns the problem of a list for documents of tokens; empty: none.
inline std::optional<TransformProblem> problem_of_documents(std::span<const Transform> transforms) {
  for (std::size_t i = 0; i < transforms.size(); ++i) {
    const std::string word = word_of(transforms[i]);
    if (stage_of(transforms[i]) != TransformStage::kDocuments) {
      return TransformProblem{
          word + " is for pictures, and these are tokens: pad_to_longest and pack_tokens are for them", i};
    }
    if (i > 0) {
      return TransformProblem{word + " cannot come after " + word_of(transforms[i - 1]) +
                                  ": documents are padded or packed, by one of the two",
                              i};
    }
  }
  if (!transforms.empty()) return std::nullopt;
  return TransformProblem{"is empty: leave it out, or give pad_to_longest or pack_tokens", 0};
}

// Returns the names of the further inputs of forward() that the transforms add to features and target.
inline std::vector<std::string> more_inputs_of(std::span<const Transform> transforms) {
  std::vector<std::string> names;
  for (const Transform& transform : transforms) {
    std::visit(
        [&](const auto& held) {
          if constexpr (requires { held.more_inputs(); }) names = held.more_inputs();
        },
        transform);
  }
  return names;
}

// Returns the target in padding; empty: there is no padding.
inline std::optional<std::int64_t> pad_target_of(std::span<const Transform> transforms) {
  std::optional<std::int64_t> target;
  for (const Transform& transform : transforms) {
    std::visit(
        [&](const auto& held) {
          if constexpr (requires { held.pad_target; }) target = held.pad_target;
        },
        transform);
  }
  return target;
}

struct PictureOptions {
  // Large JPEGs are decoded at a half, a quarter or an eighth of their size if the result is not smaller than the
  // transforms need. Faster; docs/data.md tells how much pixels differ.
  bool scaled_decoding = false;
};

// Samples whose first value is the bytes of a JPEG or PNG file (uint8 [bytes]) and whose second one is a class (int64)
// become batches: "image", uint8 [3, height, width] (float32 after `normalize`), and "label", int64 or, after mixup or
// cutmix, float32 [classes]. DataError: those of problem_of(), and for a picture that cannot be decoded, with its file
// and offset.
std::shared_ptr<Dataset> transformed(std::shared_ptr<const SampleSource> pictures, std::vector<Transform> transforms,
                                     const PictureOptions& options = {});

}  // namespace dtrain::data
