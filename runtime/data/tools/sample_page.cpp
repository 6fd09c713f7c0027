#include "dtrain/data/tools.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include <png.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/data/image.h"

namespace dtrain::data {
namespace {

constexpr int kShownSide = 224;  // longer side of a stored picture, in pixels

std::string base64(std::string_view bytes) {
  constexpr const char* kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) text += i + j > bytes.size() ? '=' : kLetters[group >> (18 - 6 * j) & 63];
  }
  return text;
}

std::string png_of(const std::vector<std::uint8_t>& rgb, Size size) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(size.width);
  image.height = static_cast<png_uint_32>(size.height);
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string file(bytes, '\0');
  if (!png_image_write_to_memory(&image, file.data(), &bytes, 0, rgb.data(), 0, nullptr)) {
    throw Error(std::string("a picture cannot be written as PNG: ") + image.message);
  }
  file.resize(bytes);
  return file;
}

std::string image_element(const std::vector<std::uint8_t>& rgb, Size size, const std::string& caption) {
  return "<figure><img width=\"" + std::to_string(size.width) + "\" height=\"" + std::to_string(size.height) +
         "\" alt=\"" + html_escaped(caption) + "\" src=\"data:image/png;base64," + base64(png_of(rgb, size)) +
         "\"><figcaption>" + html_escaped(caption) + "</figcaption></figure>\n";
}

std::string stored_picture(const Value& file) {
  const Image whole = decode_image({file.data.get(), file.bytes()});
  const double scale = std::min(1.0, static_cast<double>(kShownSide) / std::max(whole.width(), whole.height()));
  const Size size{std::max(1, static_cast<int>(whole.width() * scale)),
                  std::max(1, static_cast<int>(whole.height() * scale))};
  const Image small =
      resized(whole, {0, 0, static_cast<double>(whole.width()), static_cast<double>(whole.height())}, size);
  std::vector<std::uint8_t> rgb;
  for (int y = 0; y < size.height; ++y) {
    for (int x = 0; x < size.width; ++x) {
      for (int c = 0; c < 3; ++c) rgb.push_back(small.row(y)[x * Image::kBytes + c]);
    }
  }
  return image_element(rgb, size, "stored: " + std::to_string(whole.width()) + " x " + std::to_string(whole.height()));
}

// Returns a row of a batch [3, height, width] as bytes of RGB; `normalize` is undone.
std::vector<std::uint8_t> pixels_of(const std::byte* data, const Field& field, const Normalize* normalize) {
  const auto plane = static_cast<std::size_t>(field.shape[1] * field.shape[2]);
  std::vector<std::uint8_t> rgb(plane * 3);
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t i = 0; i < plane; ++i) {
      if (field.type == ElementType::kUint8) {
        rgb[i * 3 + c] = static_cast<std::uint8_t>(data[c * plane + i]);
        continue;
      }
      float value = 0;
      std::memcpy(&value, data + (c * plane + i) * sizeof value, sizeof value);
      const double level = 255 * (value * (normalize ? normalize->std[c] : 1) + (normalize ? normalize->mean[c] : 0));
      rgb[i * 3 + c] = static_cast<std::uint8_t>(std::clamp(std::lround(level), 0l, 255l));
    }
  }
  return rgb;
}

std::string class_name(std::int64_t label, const std::vector<std::string>& classes) {
  const bool known = label >= 0 && static_cast<std::size_t>(label) < classes.size();
  return std::to_string(label) + (known ? " (" + classes[static_cast<std::size_t>(label)] + ")" : "");
}

// Returns the class, or the probabilities of a mixed sample.
std::string label_text(const std::byte* data, const Field& field, const std::vector<std::string>& classes) {
  if (field.type == ElementType::kInt64) {
    std::int64_t label = 0;
    std::memcpy(&label, data, sizeof label);
    return "class " + class_name(label, classes);
  }
  std::string text;
  for (std::int64_t i = 0; i < field.shape[0]; ++i) {
    float share = 0;
    std::memcpy(&share, data + static_cast<std::size_t>(i) * sizeof share, sizeof share);
    if (share < 0.005F) continue;
    char percent[16];
    std::snprintf(percent, sizeof percent, "%.0f%%", share * 100);
    text += (text.empty() ? "" : ", ") + std::string(percent) + " class " + class_name(i, classes);
  }
  return text;
}

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>)";
constexpr const char* kStyle = R"(</title><style>
body { font: 15px/1.4 system-ui, sans-serif; margin: 2em; color: #222; background: #fff; }
h1 { font-size: 1.4em; } h2 { font-size: 1em; margin: 1.5em 0 .3em; overflow-wrap: anywhere; }
code { background: #f2f2f2; padding: 0 .3em; } .row { display: flex; flex-wrap: wrap; gap: 10px; align-items: flex-end; }
figure { margin: 0; } figcaption { font-size: .8em; color: #555; max-width: 224px; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818; } code { background: #333; } figcaption { color: #aaa; } }
</style></head><body>
)";

}  // namespace

std::string sample_page(const std::shared_ptr<const SampleSource>& source, const std::vector<Transform>& transforms,
                        const PictureOptions& options, const SamplePageOptions& page) {
  const std::shared_ptr<const Dataset> dataset = transformed(source, transforms, options);
  const Field& pictures = dataset->fields()[0];
  const Field& labels = dataset->fields()[1];
  const Normalize* normalize = nullptr;
  std::string list;
  for (const Transform& transform : transforms) {
    list += (list.empty() ? "" : ", ") + std::string("<code>") + word_of(transform) + "</code>";
    if (const auto* held = std::get_if<Normalize>(&transform)) normalize = held;
  }
  const std::int64_t count = std::min(page.samples, source->size());
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(i);
  const BatchAllocator allocate = [](std::size_t bytes) {
    return std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
  };
  std::vector<HostBatch> epochs;
  for (std::int64_t epoch = 0; epoch < page.epochs; ++epoch) {
    const auto builder = dataset->begin({{page.seed, epoch}, 0}, count, allocate);
    builder->read(0, numbers);
    epochs.push_back(builder->finish());
  }
  const Size size{static_cast<int>(pictures.shape[2]), static_cast<int>(pictures.shape[1])};
  std::string html = kHead + html_escaped(page.title) + kStyle + "<h1>" + html_escaped(page.title) + "</h1>\n<p>" +
                     std::to_string(source->size()) + " samples; the first " + std::to_string(count) +
                     ", as they are stored and as a model gets them in " + count_of(page.epochs, "epoch") + ": " +
                     list + ". Pictures are " + name_of(pictures.type) + " [3, " + std::to_string(size.height) + ", " +
                     std::to_string(size.width) + "]" + (normalize ? "; what normalize does is undone here." : ".") +
                     "</p>\n";
  for (std::int64_t i = 0; i < count; ++i) {
    const Sample sample = source->read({}, i);
    html += "<h2>sample " + std::to_string(i) + ": " + html_escaped(source->where(i)) + "</h2>\n<div class=\"row\">\n" +
            stored_picture(sample.values[0]);
    for (std::size_t epoch = 0; epoch < epochs.size(); ++epoch) {
      const auto at = static_cast<std::size_t>(i);
      html += image_element(pixels_of(epochs[epoch].fields[0].get() + at * pictures.bytes(), pictures, normalize), size,
                            "epoch " + std::to_string(epoch) + ": " +
                                label_text(epochs[epoch].fields[1].get() + at * labels.bytes(), labels, page.classes));
    }
    html += "</div>\n";
  }
  return html + "</body></html>\n";
}

}  // namespace dtrain::data
