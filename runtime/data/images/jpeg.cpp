// JPEG files, read by libjpeg-turbo.
//
// Rows above the region are skipped (only their entropy coding is read), rows below it are not read, and in each row
// only the blocks that the region needs are computed.
#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <string>

#include <jpeglib.h>

#include <jerror.h>

#include "images/decode.h"

namespace dtrain::data {
namespace {

// Number of additional columns that are decoded on each side. Chroma is smoothed over neighbours, so columns at the
// edge of the decoded part differ from those of the whole picture.
constexpr int kMargin = 2;
// A progressive file with more scans is an attack on decoding time (libjpeg-turbo has the same limit for fuzzing).
constexpr int kMostScans = 500;
constexpr int kApp1 = JPEG_APP0 + 1;
constexpr std::array<std::uint8_t, 6> kExifStart{'E', 'x', 'i', 'f', 0, 0};

// libjpeg reports an error by a call that must not return.
struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf jump;
  std::array<char, JMSG_LENGTH_MAX> message;
  const std::byte* at;  // position of the reader at the error
};

[[noreturn]] void leave(j_common_ptr common) {
  auto* const errors = reinterpret_cast<ErrorManager*>(common->err);
  errors->base.format_message(common, errors->message.data());
  errors->at = nullptr;
  if (common->is_decompressor) {
    const jpeg_source_mgr* source = reinterpret_cast<j_decompress_ptr>(common)->src;
    if (source) errors->at = reinterpret_cast<const std::byte*>(source->next_input_byte);
  }
  std::longjmp(errors->jump, 1);
}

// libjpeg continues after a warning, with grey in place of missing data. If a part of the picture is missing, the file
// counts as damaged.
void warn(j_common_ptr common, int level) {
  if (level >= 0) return;
  switch (common->err->msg_code) {
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_BOGUS_PROGRESSION:
      leave(common);
    default:
      return;
  }
}

void keep_quiet(j_common_ptr) {}

// The source of bytes has the whole file from the beginning; reading past its end is an error.
void nothing(j_decompress_ptr) {}
boolean at_end(j_decompress_ptr decoder) {
  decoder->err->msg_code = JWRN_JPEG_EOF;
  leave(reinterpret_cast<j_common_ptr>(decoder));
}
void skip(j_decompress_ptr decoder, long count) {
  if (count <= 0) return;
  jpeg_source_mgr& source = *decoder->src;
  if (static_cast<std::size_t>(count) > source.bytes_in_buffer) at_end(decoder);
  source.next_input_byte += count;
  source.bytes_in_buffer -= static_cast<std::size_t>(count);
}

void check_scans(j_common_ptr common) {
  if (common->is_decompressor && reinterpret_cast<j_decompress_ptr>(common)->input_scan_number > kMostScans) {
    common->err->msg_code = JERR_BAD_PROGRESSION;
    leave(common);
  }
}

// Converts like Pillow. The four numbers of a pixel are inverted, which is Adobe's form.
void cmyk_to_rgb(std::uint8_t* row, std::size_t pixels) {
  for (std::size_t i = 0; i < pixels; ++i, row += Image::kBytes) {
    const int black = row[3];
    for (int c = 0; c < 3; ++c) {
      const int product = black * (255 - row[c]) + 128;
      row[c] = static_cast<std::uint8_t>(std::clamp(black - ((product + (product >> 8)) >> 8), 0, 255));
    }
  }
}

class JpegReader final : public ImageReader {
 public:
  explicit JpegReader(std::span<const std::byte> file) : file_(file) {
    decoder_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = leave;
    errors_.base.emit_message = warn;
    errors_.base.output_message = keep_quiet;
    try {
      guarded([this] { read_header(); });
    } catch (...) {
      jpeg_destroy_decompress(&decoder_);
      throw;
    }
  }
  ~JpegReader() override { jpeg_destroy_decompress(&decoder_); }
  JpegReader& operator=(JpegReader&&) = delete;

  Size size() const override {
    return {static_cast<int>(decoder_.image_width), static_cast<int>(decoder_.image_height)};
  }
  Orientation orientation() const override { return orientation_; }

  DecodedRegion read(const Region& region, Size at_least) override {
    divisor_ = divisor_for(region, at_least);
    guarded([this] { start(); });
    const auto [columns, lines] = covering(region);
    region_ = columns;
    guarded([this] { choose_columns(); });
    Image image({region_.width, lines.height});
    rows_ = {image.row(0), image.stride(), lines.y, lines.height};
    guarded([this] { read_rows(); });
    const double divisor = divisor_;
    return {std::move(image),
            {region.x / divisor - region_.x, region.y / divisor - lines.y, region.width / divisor,
             region.height / divisor}};
  }

 private:
  struct Rows {
    std::uint8_t* first = nullptr;
    std::size_t stride = 0;
    int skipped = 0;
    int count = 0;
  };

  // Runs `body`, which must have no destructors, because longjmp() would skip them.
  template <typename Body>
  void guarded(const Body& body) {
    if (setjmp(errors_.jump) != 0) fail();
    body();
  }

  [[noreturn]] void fail() {
    const std::uint64_t offset = errors_.at ? static_cast<std::uint64_t>(errors_.at - file_.data()) : 0;
    switch (errors_.base.msg_code) {
      case JWRN_JPEG_EOF:
        throw ImageError("truncated: the JPEG ends here, inside its picture", file_.size());
      case JWRN_HIT_MARKER:
      case JWRN_HUFF_BAD_CODE:
      case JWRN_ARITH_BAD_CODE:
      case JWRN_BOGUS_PROGRESSION:
        throw ImageError(
            "damaged: the JPEG's picture data cannot be decoded (" + std::string(errors_.message.data()) + ")", offset);
      default:
        throw ImageError("damaged: no valid JPEG (" + std::string(errors_.message.data()) + ")", offset);
    }
  }

  void read_header() {
    jpeg_create_decompress(&decoder_);
    decoder_.src = &source_;
    source_.init_source = nothing;
    source_.fill_input_buffer = at_end;
    source_.skip_input_data = skip;
    source_.resync_to_restart = jpeg_resync_to_restart;
    source_.term_source = nothing;
    source_.next_input_byte = reinterpret_cast<const JOCTET*>(file_.data());
    source_.bytes_in_buffer = file_.size();
    jpeg_save_markers(&decoder_, kApp1, 0xffff);
    jpeg_read_header(&decoder_, TRUE);
    progress_.progress_monitor = check_scans;
    decoder_.progress = &progress_;
    for (const jpeg_marker_struct* marker = decoder_.marker_list; marker; marker = marker->next) {
      const std::span<const std::uint8_t> data(marker->data, marker->data_length);
      if (data.size() < kExifStart.size() || !std::equal(kExifStart.begin(), kExifStart.end(), data.begin())) continue;
      orientation_ = read_orientation(data.subspan(kExifStart.size()));
      break;
    }
  }

  // Returns the divisor of the picture's sizes: 8, 4, 2 or 1.
  static int divisor_for(const Region& region, Size at_least) {
    if (at_least == Size{}) return 1;
    int divisor = 8;
    while (divisor > 1 && (region.width < at_least.width * divisor || region.height < at_least.height * divisor)) {
      divisor /= 2;
    }
    return divisor;
  }

  void start() {
    is_cmyk_ = decoder_.jpeg_color_space == JCS_CMYK || decoder_.jpeg_color_space == JCS_YCCK;
    decoder_.out_color_space = is_cmyk_ ? JCS_CMYK : JCS_EXT_RGBX;
    decoder_.scale_num = 1;
    decoder_.scale_denom = static_cast<unsigned>(divisor_);
    jpeg_start_decompress(&decoder_);
  }

  // Returns the columns and the rows to decode, in pixels of the decoded picture.
  std::pair<Region, Region> covering(const Region& region) const {
    const auto width = static_cast<int>(decoder_.output_width), height = static_cast<int>(decoder_.output_height);
    const auto up = [this](int value) { return (value + divisor_ - 1) / divisor_; };
    const int left = std::max(0, region.x / divisor_ - kMargin);
    const int right = std::min(width, up(region.x + region.width) + kMargin);
    const int top = region.y / divisor_, bottom = std::min(height, up(region.y + region.height));
    return {{left, 0, right - left, 0}, {0, top, 0, bottom - top}};
  }

  // Sets region_ to the columns that libjpeg decodes, which begins at a whole block.
  void choose_columns() {
    const auto width = static_cast<int>(decoder_.output_width);
    if (region_.width == width) return;
    auto first = static_cast<JDIMENSION>(region_.x), count = static_cast<JDIMENSION>(region_.width);
    jpeg_crop_scanline(&decoder_, &first, &count);
    region_.x = static_cast<int>(first);
    region_.width = static_cast<int>(decoder_.output_width);
  }

  void read_rows() {
    if (rows_.skipped > 0) jpeg_skip_scanlines(&decoder_, static_cast<JDIMENSION>(rows_.skipped));
    constexpr int kAtOnce = 16;
    JSAMPROW pointers[kAtOnce];
    int done = 0;
    while (done < rows_.count) {
      const int wanted = std::min(kAtOnce, rows_.count - done);
      for (int i = 0; i < wanted; ++i) pointers[i] = rows_.first + rows_.stride * static_cast<std::size_t>(done + i);
      const auto got = static_cast<int>(jpeg_read_scanlines(&decoder_, pointers, static_cast<JDIMENSION>(wanted)));
      if (is_cmyk_) {
        for (int i = 0; i < got; ++i) cmyk_to_rgb(pointers[i], static_cast<std::size_t>(region_.width));
      }
      done += got;
    }
    jpeg_abort_decompress(&decoder_);
  }

  const std::span<const std::byte> file_;
  jpeg_decompress_struct decoder_{};
  jpeg_source_mgr source_{};
  jpeg_progress_mgr progress_{};
  ErrorManager errors_{};
  Orientation orientation_;
  bool is_cmyk_ = false;
  int divisor_ = 1;
  Region region_;  // has the decoded columns
  Rows rows_;
};

}  // namespace

std::unique_ptr<ImageReader> make_jpeg_reader(std::span<const std::byte> file) {
  return std::make_unique<JpegReader>(file);
}

}  // namespace dtrain::data
