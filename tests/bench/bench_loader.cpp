// Pictures a second: 224 x 224 crops of JPEGs of some 100 KB from tar shards (random resized crop, flip, normalize), in
// batches of 32 with 0, 1 and 2 workers. Ours, torchvision with PyTorch's DataLoader, and WebDataset and SPDL where
// DTRAIN_PEERS_PYTHON has them, in turns within one run. And libjpeg-turbo alone, which decodes the same parts of the
// same pictures and does nothing else with them.
//
// Then the same for raw tensors, in memory and in a file in the page cache: ours, PyTorch's DataLoader (a
// TensorDataset, and a mapped array of NumPy), and memcpy alone of the same samples.
//
//   bench_loader [--json] [--quick]
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <cmath>
#include <cstdio>
#include <optional>

#include <fcntl.h>
#include <jpeglib.h>

#include "contestant.h"
#include "dtrain/base/error.h"
#include "dtrain/data/data_sets.h"
#include "dtrain/data/in_memory.h"
#include "dtrain/data/loader.h"
#include "dtrain/data/shards.h"
#include "dtrain/data/transforms.h"
#include "images/view.h"
#include "kernel_options.h"
#include "tar_archive.h"

namespace dtrain::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPictures = 512, kShards = 4;
constexpr data::Size kSize{500, 375};
constexpr int kBatch = 32;
constexpr int kWarmUpBatches = 4;  // as many as a DataLoader of 2 workers has ready
// A peer's workers read ahead after their turn: the next one begins when they have ended.
constexpr std::chrono::milliseconds kPause{300};
constexpr int kQuality = 92;
constexpr int kSide = 224;
constexpr std::int64_t kRawSamples = 512;  // 308 MB, far more than caches hold

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

// Of a turn of `batches` batches.
template <typename NextBatch>
double samples_a_second(int batches, const NextBatch& next) {
  for (int i = 0; i < kWarmUpBatches; ++i) next();
  const auto start = Clock::now();
  for (int i = 0; i < batches; ++i) next();
  return kBatch * batches / std::chrono::duration<double>(Clock::now() - start).count();
}

// Our loader, which goes on from turn to turn.
class Ours {
 public:
  Ours(const std::shared_ptr<const data::Dataset>& dataset, int workers)
      : loader_(dataset, {.batch_size = kBatch, .seed = 1, .workers = workers}) {}

  double turn(int batches) {
    return samples_a_second(batches, [&] { next(); });
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

  double turn(int batches) {
    return samples_a_second(batches, [&] {
      for (int i = 0; i < kBatch; ++i) decode((next_ = (next_ + 1) % files_.size()));
    });
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

std::vector<data::Field> raw_fields() {
  return {{"features", data::ElementType::kFloat32, {3, kSide, kSide}}, {"target", data::ElementType::kInt64, {}}};
}

std::shared_ptr<const data::Dataset> raw_in_memory() {
  auto memory = data::InMemoryDataset::allocate("bench", kRawSamples, raw_fields());
  const auto features = memory.column(0);
  for (std::size_t i = 0; i < features.size(); ++i) features[i] = static_cast<std::byte>(i * 31 % 251);
  return std::make_shared<data::InMemoryDataset>(std::move(memory));
}

// raw.features and raw.target, which the peers map, too.
std::shared_ptr<const data::Dataset> raw_in_files(const std::filesystem::path& folder) {
  const auto fields = raw_fields();
  std::vector<data::RawArray> arrays;
  for (const data::Field& field : fields) {
    arrays.push_back({folder / ("raw." + field.name), field.type, field.shape});
    std::ofstream file(arrays.back().file, std::ios::binary);
    const std::vector<char> sample(field.bytes(), 1);
    for (std::int64_t i = 0; i < kRawSamples; ++i)
      file.write(sample.data(), static_cast<std::streamsize>(sample.size()));
  }
  return data::open_raw(arrays[0], arrays[1]);
}

// memcpy of samples in a random order into as many batches as a loader has in use.
class Memcpy {
 public:
  Memcpy() : from_(bytes_ * kRawSamples), batches_(4, std::vector<std::byte>(bytes_ * kBatch)) {
    data::RandomStream random{7, 0};
    for (std::size_t i = 0; i < from_.size(); i += 64) from_[i] = static_cast<std::byte>(i);
    for (int i = 0; i < kOrder; ++i) order_.push_back(random.below(kRawSamples));
  }
  double turn(int batches) {
    return samples_a_second(batches, [&] {
      std::byte* to = batches_[batch_++ % batches_.size()].data();
      for (int i = 0; i < kBatch; ++i, to += bytes_) {
        std::memcpy(to, from_.data() + order_[next_++ % kOrder] * bytes_, bytes_);
      }
    });
  }

 private:
  static constexpr int kOrder = 1000;

  const std::size_t bytes_ = raw_fields()[0].bytes();
  std::vector<std::byte> from_;
  std::vector<std::vector<std::byte>> batches_;
  std::vector<std::uint64_t> order_;
  std::size_t next_ = 0, batch_ = 0;
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
  double turn(const std::string& name, int workers, int batches) try {
    const std::string what = name + " " + std::to_string(workers);
    contestant_.steps(kWarmUpBatches, what);
    double seconds = 0;
    for (const std::int64_t time : contestant_.steps(batches, what)) seconds += static_cast<double>(time) / 1e9;
    if (workers > 0 || name == "spdl") std::this_thread::sleep_for(kPause);
    return kBatch * batches / seconds;
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

// Samples a second of each contestant, turn after turn.
using Rates = std::map<std::string, std::vector<double>>;
using Loaders = std::map<int, std::unique_ptr<Ours>>;  // for each number of workers

const std::vector<int> kWorkers{0, 1, 2};

Loaders loaders_of(const std::shared_ptr<const data::Dataset>& dataset) {
  Loaders loaders;
  for (const int count : kWorkers) loaders[count] = std::make_unique<Ours>(dataset, count);
  return loaders;
}

// One turn of each.
void take_turns(const std::string& ours_name, Loaders& ours, Peers& peers, const std::vector<std::string>& peer_names,
                int batches, Rates& rates) {
  for (const int count : kWorkers) {
    rates[ours_name + " " + std::to_string(count)].push_back(ours[count]->turn(batches));
    for (const std::string& name : peer_names) {
      rates[name + " " + std::to_string(count)].push_back(peers.turn(name, count, batches));
    }
  }
}

struct Table {
  Json rows = Json::array();  // for each number of workers the samples a second of each
  double best = 0, best_of_peers = 0;
};

Table table_of(Rates& rates, const std::string& ours_name, const std::vector<std::string>& peer_names) {
  Table table;
  for (const int count : kWorkers) {
    const double own = median_of(rates[ours_name + " " + std::to_string(count)]);
    table.best = std::max(table.best, own);
    Json row{{"workers", count}, {"ours", own}};
    for (const std::string& name : peer_names) {
      const double rate = median_of(rates[name + " " + std::to_string(count)]);
      table.best_of_peers = std::max(table.best_of_peers, rate);
      row[name] = rate;
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

void measure_pictures(const std::filesystem::path& folder, Peers& peers, int rounds, int batches, Json& result) {
  const auto source = data::load_shards((folder / "train-*.tar").string());
  BareDecoder bare(source);
  Loaders ours = loaders_of(data::transformed(source, transforms()));
  Rates rates;
  for (int round = 0; round < rounds; ++round) {
    rates["bare"].push_back(bare.turn(batches));
    take_turns("ours", ours, peers, peers.names(), batches, rates);
  }
  const Table table = table_of(rates, "ours", peers.names());
  const double bare_rate = median_of(rates["bare"]);
  result["samples_per_second"] = table.rows;
  result["bare_decode"] = bare_rate;
  result["decode_share"] = median_of(rates["ours 0"]) / bare_rate;
  result["jpeg_ratio"] = table.best / table.best_of_peers;
}

void measure_raw(const std::shared_ptr<const data::Dataset>& in_memory,
                 const std::shared_ptr<const data::Dataset>& in_files, Peers& peers, int rounds, int batches,
                 Json& result) {
  Loaders of_memory = loaders_of(in_memory), of_files = loaders_of(in_files);
  Memcpy copying;
  Rates rates;
  for (int round = 0; round < rounds; ++round) {
    rates["memcpy"].push_back(copying.turn(batches));
    take_turns("memory", of_memory, peers, {"raw_memory"}, batches, rates);
    take_turns("file", of_files, peers, {"raw_mapped"}, batches, rates);
  }
  const double memcpy_rate = median_of(rates["memcpy"]);
  const Table memory = table_of(rates, "memory", {"raw_memory"}), files = table_of(rates, "file", {"raw_mapped"});
  result["raw_memory"] = memory.rows;
  result["raw_file"] = files.rows;
  result["memcpy"] = memcpy_rate;
  result["raw_share"] = median_of(rates["memory 0"]) / memcpy_rate;
  result["raw_file_share"] = median_of(rates["file 0"]) / memcpy_rate;
  result["raw_ratio"] = memory.best / memory.best_of_peers;
  result["raw_file_ratio"] = files.best / files.best_of_peers;
}

int run(const KernelOptions& options) {
  const ScratchFolder folder;
  Json result{{"picture_bytes", write_shards(folder.path())}};
  const auto in_memory = raw_in_memory(), in_files = raw_in_files(folder.path());
  Peers peers(folder.path());
  const bool is_quick = options.rounds < KernelOptions().rounds;
  const int rounds = is_quick ? 3 : 9, batches = is_quick ? 8 : 24;
  measure_pictures(folder.path(), peers, rounds, batches, result);
  measure_raw(in_memory, in_files, peers, rounds, batches, result);
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
