// A list of transforms as a data set.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/data/image.h"
#include "dtrain/data/sample.h"
#include "dtrain/data/transforms.h"
#include "images/view.h"

namespace dtrain::data {
namespace {

// Places of the fields in a batch.
constexpr std::size_t kPictures = 0, kLabels = 1;

// Draws a standard normal number (Box and Muller 1958).
double normal(RandomStream& random) {
  const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
  return radius * std::cos(2 * M_PI * random.uniform());
}

// Draws the logarithm of a Gamma(shape, 1) number (Marsaglia and Tsang 2000), so that a small shape gives no zero.
double log_gamma_sample(double shape, RandomStream& random) {
  if (shape < 1) return log_gamma_sample(shape + 1, random) + std::log(1 - random.uniform()) / shape;
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(random), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      return std::log(d) + std::log(v);
    }
  }
}

double symmetric_beta(double alpha, RandomStream& random) {
  const double a = log_gamma_sample(alpha, random), b = log_gamma_sample(alpha, random);
  return 1 / (1 + std::exp(b - a));
}

std::vector<float> probabilities(const HostBatch& batch, const Field& label, std::int64_t classes) {
  const auto rows = static_cast<std::size_t>(batch.samples), width = static_cast<std::size_t>(classes);
  std::vector<float> result(rows * width);
  const std::byte* from = batch.fields[kLabels].get();
  if (label.type == ElementType::kFloat32) {
    std::memcpy(result.data(), from, result.size() * sizeof(float));
    return result;
  }
  for (std::size_t i = 0; i < rows; ++i) {
    std::int64_t sample_class = 0;
    std::memcpy(&sample_class, from + i * sizeof sample_class, sizeof sample_class);
    if (sample_class < 0 || sample_class >= classes) {
      throw DataError("a sample has class " + std::to_string(sample_class) +
                          ", but the transform says classes: " + std::to_string(classes),
                      "correct classes: of mixup or cutmix");
    }
    result[i * width + static_cast<std::size_t>(sample_class)] = 1;
  }
  return result;
}

// Mixes the labels: `share` of each row's own and the rest of the row's before it.
void mix_labels(HostBatch& batch, const Field& label, std::int64_t classes, float share,
                const BatchAllocator& allocate) {
  const std::vector<float> own = probabilities(batch, label, classes);
  const auto rows = static_cast<std::size_t>(batch.samples), width = static_cast<std::size_t>(classes);
  auto memory = allocate(own.size() * sizeof(float));
  std::vector<float> row(width);
  for (std::size_t i = 0; i < rows; ++i) {
    const float* const a = own.data() + i * width;
    const float* const b = own.data() + (i == 0 ? rows - 1 : i - 1) * width;  // the row before; of the first, the last
    for (std::size_t c = 0; c < width; ++c) row[c] = a[c] * share + b[c] * (1 - share);
    std::memcpy(memory.get() + i * width * sizeof(float), row.data(), width * sizeof(float));
  }
  batch.fields[kLabels] = std::move(memory);
  batch.shapes[kLabels] = {classes};
}

template <typename Element>
Element mixed(Element a, Element b, float share) {
  const float value = static_cast<float>(a) * share + static_cast<float>(b) * (1 - share);
  if constexpr (std::is_same_v<Element, std::uint8_t>) {
    return static_cast<std::uint8_t>(std::lround(value));
  } else {
    return value;
  }
}

template <typename Element>
void mix_rows(std::byte* memory, std::size_t rows, std::size_t width, float share) {
  auto* const first = reinterpret_cast<Element*>(memory);
  const std::vector<Element> last(first + (rows - 1) * width, first + rows * width);
  // Goes from the back, so that the row before is still unchanged.
  for (std::size_t i = rows; i-- > 0;) {
    Element* const own = first + i * width;
    const Element* const other = i == 0 ? last.data() : own - width;
    for (std::size_t j = 0; j < width; ++j) own[j] = mixed(own[j], other[j], share);
  }
}

// Returns the rectangle to exchange, in pixels.
Region rectangle(double share, Size picture, RandomStream& random) {
  const double side = std::sqrt(1 - share) / 2;
  const auto x = static_cast<int>(random.below(static_cast<std::uint64_t>(picture.width)));
  const auto y = static_cast<int>(random.below(static_cast<std::uint64_t>(picture.height)));
  const auto half_width = static_cast<int>(side * picture.width), half_height = static_cast<int>(side * picture.height);
  const int left = std::max(x - half_width, 0), top = std::max(y - half_height, 0);
  return {left, top, std::min(x + half_width, picture.width) - left, std::min(y + half_height, picture.height) - top};
}

// `fields`: those of the batch before the transform: the pictures [3, height, width], uint8 or float32, and the
// classes, int64 or probabilities.
BatchFunction mixing(const MixUp& transform, std::vector<Field> fields) {
  return
      [transform, fields = std::move(fields)](HostBatch& batch, RandomStream& random, const BatchAllocator& allocate) {
        const auto share = static_cast<float>(symmetric_beta(transform.alpha, random));
        const Field& pictures = fields[kPictures];
        const auto rows = static_cast<std::size_t>(batch.samples);
        const std::size_t width = pictures.bytes() / size_of(pictures.type);
        if (rows > 0) {
          const bool bytes = pictures.type == ElementType::kUint8;
          (bytes ? mix_rows<std::uint8_t> : mix_rows<float>)(batch.fields[kPictures].get(), rows, width, share);
        }
        mix_labels(batch, fields[kLabels], transform.classes, share, allocate);
      };
}

BatchFunction mixing(const CutMix& transform, std::vector<Field> fields) {
  return [transform, fields = std::move(fields)](HostBatch& batch, RandomStream& random,
                                                 const BatchAllocator& allocate) {
    const Field& pictures = fields[kPictures];
    const Size size{static_cast<int>(pictures.shape[2]), static_cast<int>(pictures.shape[1])};
    const Region part = rectangle(symmetric_beta(transform.alpha, random), size, random);
    const auto rows = static_cast<std::size_t>(batch.samples);
    const std::size_t picture = pictures.bytes(), element = size_of(pictures.type);
    const std::size_t line = static_cast<std::size_t>(size.width) * element;
    std::byte* const memory = batch.fields[kPictures].get();
    if (rows > 0) {
      const std::vector<std::byte> last(memory + (rows - 1) * picture, memory + rows * picture);
      for (std::size_t i = rows; i-- > 0;) {
        std::byte* const own = memory + i * picture;
        const std::byte* const other = i == 0 ? last.data() : own - picture;
        for (std::int64_t plane = 0; plane < pictures.shape[0]; ++plane) {
          for (int y = part.y; y < part.y + part.height; ++y) {
            const std::size_t at =
                static_cast<std::size_t>(plane * size.height + y) * line + static_cast<std::size_t>(part.x) * element;
            std::memcpy(own + at, other + at, static_cast<std::size_t>(part.width) * element);
          }
        }
      }
    }
    const double area = static_cast<double>(part.width) * part.height / (static_cast<double>(size.width) * size.height);
    mix_labels(batch, fields[kLabels], transform.classes, static_cast<float>(1 - area), allocate);
  };
}

// Returns the fields after the transform: the classes are float32 [classes].
std::vector<Field> fields_after_mixing(std::vector<Field> fields, std::int64_t classes) {
  fields[kLabels] = {fields[kLabels].name, ElementType::kFloat32, {classes}};
  return fields;
}

// Decodes and transforms one picture. Thread safe.
class PicturePipeline {
 public:
  PicturePipeline(const std::vector<Transform>& transforms, const PictureOptions& options) : options_(options) {
    for (const Transform& transform : transforms) {
      if (stage_of(transform) == TransformStage::kPicture) pictures_.push_back(transform);
      if (const auto* normalize = std::get_if<Normalize>(&transform)) {
        normalizes_ = true;
        for (std::size_t c = 0; c < 3; ++c) {
          factor_[c] = static_cast<float>(1 / (255 * normalize->std[c]));
          offset_[c] = static_cast<float>(-normalize->mean[c] / normalize->std[c]);
        }
      }
    }
  }

  ElementType type() const { return normalizes_ ? ElementType::kFloat32 : ElementType::kUint8; }

  void run(std::span<const std::byte> file, RandomStream& random, std::byte* out) const {
    const Image image = transformed_picture(file, random);
    if (normalizes_) {
      write_planes(image, factor_, offset_, reinterpret_cast<float*>(out));
    } else {
      write_planes(image, reinterpret_cast<std::uint8_t*>(out));
    }
  }

 private:
  Image transformed_picture(std::span<const std::byte> file, RandomStream& random) const {
    std::optional<View> view;
    std::size_t next = 0;
    const DecodedRegion decoded = decode_region(file, [&](Size picture) {
      view.emplace(picture);
      next = collect(*view, pictures_, 0, random);
      return view->request(options_.scaled_decoding);
    });
    Image image = view->of(decoded);
    while (next < pictures_.size()) {
      if (change_pixels(pictures_[next], image, random)) {
        ++next;
      } else {
        View later(image.size());
        const std::size_t first = std::exchange(next, collect(later, pictures_, next, random));
        if (next == first) {
          throw Error(std::string("the transform ") + word_of(pictures_[first]) +
                          " changes neither a view nor pixels of " + std::to_string(image.width()) + " x " +
                          std::to_string(image.height()),
                      "this is an error in dtrain: please report it with the list of transforms");
        }
        image = later.of(image);
      }
    }
    return image;
  }

  std::vector<Transform> pictures_;
  PictureOptions options_;
  bool normalizes_ = false;
  std::array<float, 3> factor_{}, offset_{};
};

std::string with_place(const std::string& where, std::int64_t index, const std::string& what) {
  return (where.empty() ? "sample " + std::to_string(index) : where) + ": " + what;
}

}  // namespace

std::shared_ptr<Dataset> transformed(std::shared_ptr<const SampleSource> pictures, std::vector<Transform> transforms,
                                     const PictureOptions& options) {
  if (const auto problem = problem_of(transforms)) throw DataError("transforms: " + problem->what);
  const PictureSize size = *size_after(transforms);
  const PicturePipeline pipeline(transforms, options);
  std::vector<Field> fields{{"image", pipeline.type(), {3, size.height, size.width}},
                            {"label", ElementType::kInt64, {}}};
  const IntoFunction function = [pipeline, pictures](const Sample& sample, RandomStream& random,
                                                     std::span<std::byte* const> outputs) {
    const Value& file = sample.values[0];
    try {
      pipeline.run({file.data.get(), file.bytes()}, random, outputs[0]);
    } catch (const ImageError& error) {
      throw DataError(with_place(pictures->where(sample.index), sample.index,
                                 std::string(error.what()) + " (byte " + std::to_string(error.offset()) + " of " +
                                     std::to_string(file.bytes()) + ")"),
                      "replace the file, or leave damaged samples out: on_error: skip");
    } catch (const DataError& error) {
      throw DataError(with_place(pictures->where(sample.index), sample.index, error.what()), error.remedy());
    }
    std::memcpy(outputs[1], sample.values[1].data.get(), sizeof(std::int64_t));
  };
  std::shared_ptr<Dataset> dataset = map_into(std::move(pictures), fields, function);
  for (const Transform& transform : transforms) {
    const auto mix = [&](const auto& held) {
      std::vector<Field> after = fields_after_mixing(fields, held.classes);
      dataset = batch_map(std::move(dataset), mixing(held, fields), after);
      fields = std::move(after);
    };
    if (const auto* mixup = std::get_if<MixUp>(&transform)) mix(*mixup);
    if (const auto* cutmix = std::get_if<CutMix>(&transform)) mix(*cutmix);
  }
  return dataset;
}

}  // namespace dtrain::data
