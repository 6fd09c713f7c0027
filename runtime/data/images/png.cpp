// PNG files, read by libpng. Rows below the region are not read unless the file is interlaced.
#include <csetjmp>
#include <cstring>
#include <string>

#include <png.h>

#include "images/decode.h"

namespace dtrain::data {
namespace {

constexpr std::size_t kSignatureBytes = 8;
// Largest memory of a chunk other than the picture (a colour profile, texts).
constexpr png_alloc_size_t kLargestChunk = 8u << 20;

class PngReader final : public ImageReader {
 public:
  explicit PngReader(std::span<const std::byte> file) : file_(file), next_(kSignatureBytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, leave, keep_quiet);
    if (png_) info_ = png_create_info_struct(png_);
    if (!info_) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      throw std::bad_alloc();
    }
    try {
      guarded([this] { read_header(); });
    } catch (...) {
      png_destroy_read_struct(&png_, &info_, nullptr);
      throw;
    }
  }
  ~PngReader() override { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader& operator=(PngReader&&) = delete;

  Size size() const override { return size_; }
  Orientation orientation() const override { return orientation_; }

  DecodedRegion read(const Region& region, Size) override {
    guarded([this] { start(); });
    if (passes_ > 1) {
      Image image(size_);
      target_ = &image;
      guarded([this] { read_interlaced(); });
      return {std::move(image), {double(region.x), double(region.y), double(region.width), double(region.height)}};
    }
    Image image({size_.width, region.height});
    target_ = &image;
    skipped_ = region.y;
    guarded([this] { read_rows(); });
    return {std::move(image), {double(region.x), 0, double(region.width), double(region.height)}};
  }

 private:
  template <typename Body>
  void guarded(const Body& body) {
    if (setjmp(jump_) != 0) {
      throw ImageError(is_truncated_ ? "truncated: the PNG ends here, inside its picture"
                                     : "damaged: no valid PNG (" + std::string(message_) + ")",
                       next_);
    }
    body();
  }

  [[noreturn]] static void leave(png_structp png, png_const_charp message) {
    auto* const self = static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(self->message_, sizeof self->message_, "%s", message);
    std::longjmp(self->jump_, 1);
  }
  static void keep_quiet(png_structp, png_const_charp) {}

  static void take(png_structp png, png_bytep into, png_size_t count) {
    auto* const self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > self->file_.size() - self->next_) {
      self->next_ = self->file_.size();
      self->is_truncated_ = true;
      png_error(png, "truncated");
    }
    std::memcpy(into, self->file_.data() + self->next_, count);
    self->next_ += count;
  }

  void read_header() {
    png_set_read_fn(png_, this, take);
    png_set_sig_bytes(png_, static_cast<int>(kSignatureBytes));
    png_set_chunk_malloc_max(png_, kLargestChunk);
    png_read_info(png_, info_);
    size_ = {static_cast<int>(png_get_image_width(png_, info_)), static_cast<int>(png_get_image_height(png_, info_))};
    png_uint_32 bytes = 0;
    png_bytep exif = nullptr;
    if (png_get_eXIf_1(png_, info_, &bytes, &exif) != 0 && exif) orientation_ = read_orientation({exif, bytes});
  }

  // Sets the conversion of any file to four bytes per pixel.
  void start() {
    const int color = png_get_color_type(png_, info_);
    if (png_get_bit_depth(png_, info_) == 16) png_set_strip_16(png_);
    if (color == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
    if (color == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png_);
    if ((color & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(png_);
    // Alpha is removed, as is a palette's transparency, which would become a channel; all files get the same filler.
    if ((color & PNG_COLOR_MASK_ALPHA) != 0 || color == PNG_COLOR_TYPE_PALETTE) png_set_strip_alpha(png_);
    png_set_filler(png_, 0xff, PNG_FILLER_AFTER);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    if (png_get_rowbytes(png_, info_) != Image({size_.width, 0}).stride()) png_error(png_, "unexpected row length");
  }

  void read_rows() {
    // The next row overwrites each skipped row.
    for (int y = 0; y < skipped_; ++y) png_read_row(png_, target_->row(0), nullptr);
    for (int y = 0; y < target_->height(); ++y) png_read_row(png_, target_->row(y), nullptr);
  }

  void read_interlaced() {
    for (int pass = 0; pass < passes_; ++pass) {
      for (int y = 0; y < target_->height(); ++y) png_read_row(png_, target_->row(y), nullptr);
    }
  }

  const std::span<const std::byte> file_;
  std::size_t next_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_{};
  char message_[128] = {};
  bool is_truncated_ = false;
  Size size_;
  Orientation orientation_;
  int passes_ = 1;
  int skipped_ = 0;
  Image* target_ = nullptr;
};

}  // namespace

std::unique_ptr<ImageReader> make_png_reader(std::span<const std::byte> file) {
  return std::make_unique<PngReader>(file);
}

}  // namespace dtrain::data
