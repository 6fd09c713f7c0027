// Pictures a second: 224 x 224 crops of JPEGs of some 100 KB from tar shards (random resized crop, flip, normalize), in
// batches of 32 with 0, 1 and 2 workers. Ours, torchvision with PyTorch's DataLoader, and WebDataset and SPDL where
// DTRAIN_PEERS_PYTHON has them, in turns within one run. And libjpeg-turbo alone, which decodes the same parts of the
// same pictures and does nothing else with them.
//
//   bench_loader [--json] [--quick]
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <cmath>
#include <cstdio>
#include <optional>

#include <fcntl.h>
#include <jpeglib.h>

#include "contestant.h"
#include "dtrain/base/error.h"
#include "dtrain/data/loader.h"
#include "dtrain/data/shards.h"
#include "dtrain/data/transforms.h"
#include "images/view.h"
#include "kernel_options.h"
#include "shards/tar.h"

namespace dtrain::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPictures = 512, kShards = 4;
constexpr data::Size kSize{500, 375};
constexpr int kBatch = 32;
constexpr int kBatchesOfTurn = 24, kWarmUpBatches = 6;
constexpr int kQuality = 92;
constexpr int kSide = 224;

// Waves and noise, which compress about as photographs do.
data::Image draw(std::uint64_t number) {
  data::RandomStream random{31, number};
  double across[3], down[3];
  for (int c = 0; c < 3; ++c) across[c] = random.uniform() / 8, down[c] = random.uniform() / 8;
  data::Image image(kSize);
  for (int y = 0; y < kSize.height; ++y) {
    for (int x = 0; x < kSize.width; ++x) {
      std::uint8_t* const pixel = image.row(y) + x * data::Image::kBytes;
      const double noise = (random.uniform() - 0.5) * 30;
      for (int c = 0; c < 3; ++c) {
        const double level = 128 + 80 * std::sin(across[c] * x) * std::cos(down[c] * y) + noise;
        pixel[c] = static_cast<std::uint8_t>(std::clamp(level, 0.0, 255.0));
      }
    }
  }
  return image;
}

std::string jpeg_of(const data::Image& picture) {
  jpeg_error_mgr errors;
  jpeg_compress_struct encoder{};
  encoder.err = jpeg_std_error(&errors);
  jpeg_create_compress(&encoder);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&encoder, &memory, &size);
  encoder.image_width = static_cast<JDIMENSION>(picture.width());
  encoder.image_height = static_cast<JDIMENSION>(picture.height());
  encoder.input_components = data::Image::kBytes;
  encoder.in_color_space = JCS_EXT_RGBX;
  jpeg_set_defaults(&encoder);
  jpeg_set_quality(&encoder, kQuality, TRUE);
  jpeg_start_compress(&encoder, TRUE);
  for (int y = 0; y < picture.height(); ++y) {
    JSAMPROW row = const_cast<JSAMPROW>(picture.row(y));
    jpeg_write_scanlines(&encoder, &row, 1);
  }
  jpeg_finish_compress(&encoder);
  std::string file(reinterpret_cast<const char*>(memory), size);
  jpeg_destroy_compress(&encoder);
  std::free(memory);
  return file;
}

// Returns the mean size of a picture in bytes.
double write_shards(const std::filesystem::path& folder) {
  double bytes = 0;
  for (int shard = 0; shard < kShards; ++shard) {
    data::TarWriter writer(folder / ("train-" + std::to_string(shard) + ".tar"));
    for (int i = shard; i < kPictures; i += kShards) {
      const std::string file = jpeg_of(draw(static_cast<std::uint64_t>(i)));
      bytes += static_cast<double>(file.size());
      writer.add(std::to_string(10000 + i) + ".jpg", file);
      writer.add(std::to_string(10000 + i) + ".cls", std::to_string(i % 10));
    }
    writer.close();
  }
  return bytes / kPictures;
}

const std::vector<data::Transform>& transforms() {
  static const std::vector<data::Transform> list{data::RandomResizedCrop{.size = kSide}, data::HorizontalFlip{},
                                                 data::Normalize{}};
  return list;
}

// Our loader, which goes on from turn to turn.
class Ours {
 public:
  Ours(const std::shared_ptr<data::SampleSource>& source, int workers)
      : loader_(data::transformed(source, transforms()), {.batch_size = kBatch, .seed = 1, .workers = workers}) {}

  // Pictures a second.
  double turn() {
    for (int i = 0; i < kWarmUpBatches; ++i) next();
    const auto start = Clock::now();
    for (int i = 0; i < kBatchesOfTurn; ++i) next();
    return kBatch * kBatchesOfTurn / std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  void next() {
    while (!loader_.next()) loader_.start_epoch(epoch_++);
  }

  data::SampleLoader loader_;
  std::int64_t epoch_ = 0;
};

// libjpeg-turbo, with the crops of our transforms.
class BareDecoder {
 public:
  explicit BareDecoder(const std::shared_ptr<data::SampleSource>& source) {
    for (std::int64_t i = 0; i < kPictures; ++i) {
      files_.push_back(source->read({}, i).values[0]);
      data::RandomStream random = data::sample_stream({1, 0}, i, source->stage());
      data::View view(kSize);
      data::collect(view, transforms(), 0, random);
      regions_.push_back(view.request(false).region);
    }
    decoder_.err = jpeg_std_error(&errors_);
    jpeg_create_decompress(&decoder_);
  }
  ~BareDecoder() { jpeg_destroy_decompress(&decoder_); }

  double turn() {
    constexpr int kCount = kBatch * kBatchesOfTurn;
    const auto start = Clock::now();
    for (int i = 0; i < kCount; ++i) decode((next_ = (next_ + 1) % files_.size()));
    return kCount / std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  void decode(std::size_t number) {
    const data::Value& file = files_[number];
    const data::Region& region = regions_[number];
    jpeg_mem_src(&decoder_, reinterpret_cast<const unsigned char*>(file.data.get()), file.bytes());
    jpeg_read_header(&decoder_, TRUE);
    decoder_.out_color_space = JCS_EXT_RGBX;
    jpeg_start_decompress(&decoder_);
    auto first = static_cast<JDIMENSION>(region.x), count = static_cast<JDIMENSION>(region.width);
    jpeg_crop_scanline(&decoder_, &first, &count);
    pixels_.resize(static_cast<std::size_t>(decoder_.output_width) * data::Image::kBytes * kSize.height);
    if (region.y > 0) jpeg_skip_scanlines(&decoder_, static_cast<JDIMENSION>(region.y));
    for (int done = 0; done < region.height;) {
      JSAMPROW rows[16];
      const int wanted = std::min(16, region.height - done);
      for (int i = 0; i < wanted; ++i) {
        rows[i] = pixels_.data() + static_cast<std::size_t>(done + i) * decoder_.output_width * data::Image::kBytes;
      }
      done += static_cast<int>(jpeg_read_scanlines(&decoder_, rows, static_cast<JDIMENSION>(wanted)));
    }
    jpeg_abort_decompress(&decoder_);
  }

  std::vector<data::Value> files_;
  std::vector<data::Region> regions_;
  std::vector<std::uint8_t> pixels_;
  jpeg_error_mgr errors_{};
  jpeg_decompress_struct decoder_{};
  std::size_t next_ = 0;
};

// The Python side (loader_peers.py): its first answer says which libraries it has.
class Peers {
 public:
  explicit Peers(const std::filesystem::path& folder)
      : contestant_((folder / "peers").string(), 1), log_(folder / "peers.log") {
    const char* given = std::getenv("DTRAIN_PEERS_PYTHON");
    const std::string python = given ? given : DTRAIN_SOURCE_DIR "/.deps/peers/bin/python";
    if (!std::filesystem::exists(python)) throw Error(python + " is not there", "scripts/setup.sh test installs it");
    ProcessOptions options;
    options.command = {python,
                       "-B",
                       DTRAIN_SOURCE_DIR "/tests/bench/loader_peers.py",
                       folder.string(),
                       contestant_.base(),
                       std::to_string(kBatch)};
    const UniqueFd log(::open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    options.fds = {{1, log.get()}, {2, log.get()}};
    process_.emplace(Process::start(options));
    for (const char* name : {"torchvision", "webdataset", "spdl"}) {
      if (contestant_.steps(1, std::string("has ") + name).front() > 0) names_.emplace_back(name);
    }
  }
  ~Peers() { contestant_.end("end"); }

  const std::vector<std::string>& names() const { return names_; }
  double turn(const std::string& name, int workers) try {
    const std::string what = name + " " + std::to_string(workers);
    contestant_.steps(kWarmUpBatches, what);
    double seconds = 0;
    for (const std::int64_t time : contestant_.steps(kBatchesOfTurn, what)) seconds += static_cast<double>(time) / 1e9;
    return kBatch * kBatchesOfTurn / seconds;
  } catch (...) {
    show_log(log_);
    throw;
  }

 private:
  Contestant contestant_;
  std::filesystem::path log_;
  std::optional<Process> process_;
  std::vector<std::string> names_;
};

int run(const KernelOptions& options) {
  const ScratchFolder folder;
  const double bytes = write_shards(folder.path());
  const auto source = data::load_shards((folder.path() / "train-*.tar").string());
  Peers peers(folder.path());
  BareDecoder bare(source);
  const std::vector<int> workers{0, 1, 2};
  std::map<int, std::unique_ptr<Ours>> ours;
  for (const int count : workers) ours[count] = std::make_unique<Ours>(source, count);

  std::map<std::string, std::vector<double>> rates;
  const int rounds = std::max(3, options.rounds / 3);  // turns take half a second each
  for (int round = 0; round < rounds; ++round) {
    rates["bare"].push_back(bare.turn());
    for (const int count : workers) {
      rates["ours " + std::to_string(count)].push_back(ours[count]->turn());
      for (const std::string& name : peers.names()) {
        rates[name + " " + std::to_string(count)].push_back(peers.turn(name, count));
      }
    }
  }

  Json rows = Json::array();
  double best = 0, best_of_ours = 0;
  for (const int count : workers) {
    const double own = median_of(rates["ours " + std::to_string(count)]);
    best_of_ours = std::max(best_of_ours, own);
    Json row{{"workers", count}, {"ours", own}};
    for (const std::string& name : peers.names()) {
      const double rate = median_of(rates[name + " " + std::to_string(count)]);
      best = std::max(best, rate);
      row[name] = rate;
    }
    rows.push_back(std::move(row));
  }
  const double bare_rate = median_of(rates["bare"]);
  Json result{{"picture_bytes", bytes},
              {"samples_per_second", std::move(rows)},
              {"bare_decode", bare_rate},
              {"decode_share", median_of(rates["ours 0"]) / bare_rate},
              {"jpeg_ratio", best_of_ours / best}};
  print_result(result, options.json);
  return 0;
}

}  // namespace
}  // namespace dtrain::bench

int main(int argc, char** argv) try {
  return dtrain::bench::run(dtrain::bench::kernel_options(argc, argv, "bench_loader"));
} catch (const dtrain::Error& error) {
  std::cerr << "bench_loader: " << error.what() << (error.remedy().empty() ? "" : "; " + error.remedy()) << "\n";
  return 1;
}
