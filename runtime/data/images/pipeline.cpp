// A list of transforms as a data set.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/data/image.h"
#include "dtrain/data/transforms.h"
#include "images/mixing.h"
#include "images/planes.h"
#include "images/view.h"

namespace dtrain::data {

namespace {

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
