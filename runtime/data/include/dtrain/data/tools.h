// The tools for data sets that `dtrain data` has as commands: pack, show and bench. Errors are DataError for what is
// read, and SystemError for what cannot be written.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/data/image_folder.h"
#include "dtrain/data/sample.h"
#include "dtrain/data/transforms.h"

namespace dtrain::data {

// Packing makes files that training reads quickly: shards of pictures, and files of tokens. One thread.
struct PackOptions {
  std::string name = "shard";  // files are NAME-000000.tar, …
  std::uint64_t shard_bytes = 256 << 20;
  // Pictures are written in a random order (a function of the seed), so that classes are mixed within each shard: the
  // loader shuffles blocks of shards, not single pictures of all shards.
  bool shuffle = true;
  std::uint64_t seed = 0;
  bool check = true;     // decode every picture; a damaged one is an error
  bool replace = false;  // replace existing shards of this name
  // Called from time to time.
  std::function<void(std::int64_t done, std::int64_t all)> progress{};
};

struct PackedShards {
  std::vector<std::filesystem::path> shards;
  std::int64_t samples = 0;
  std::uint64_t bytes = 0;
};

// Reads a CSV file: a line of names, then one line for each picture with its path (relative to the file's folder) and
// its class. If all classes are whole numbers from 0 on, they are not changed; otherwise they are numbered in the order
// of their names.
ImageFolderFiles read_picture_list(const std::filesystem::path& csv, const std::string& path_column,
                                   const std::string& class_column);

// Writes the pictures as shards into `folder`, which is made, and classes.txt, a line for each class. A shard has its
// name once it is complete. DataError if the folder has shards of this name, unless they are to be replaced.
PackedShards pack_pictures(const ImageFolderFiles& pictures, const std::filesystem::path& folder,
                           const PackOptions& options);

struct PackedTokens {
  std::int64_t tokens = 0;
};

inline constexpr std::int64_t kEndOfText = 256;

// Writes the bytes of texts as a file of tokens (uint16, data.format: tokens), each text followed by kEndOfText. Texts
// must be UTF-8. DataError if the file is there already, unless it is to be replaced.
PackedTokens pack_texts(const std::vector<std::filesystem::path>& texts, const std::filesystem::path& file,
                        bool replace = false);

// A page (HTML, one file, nothing is loaded from elsewhere) that shows the input of a model: pictures as they are
// stored, and after their transforms.
struct SamplePageOptions {
  std::string title;
  std::int64_t samples = 16;           // number of first samples
  std::int64_t epochs = 4;             // number of epochs whose transforms are shown
  std::uint64_t seed = 0;              // of the experiment
  std::vector<std::string> classes{};  // names of the classes; empty: not known
};

// Returns the page. DataError: those of the source.
std::string sample_page(const std::shared_ptr<const SampleSource>& source, const std::vector<Transform>& transforms,
                        const PictureOptions& options, const SamplePageOptions& page);

struct WorkerRate {
  int workers = 0;
  double samples_per_second = 0;
};

// How many samples of pictures this machine prepares per second, without training, and the parts of this time.
struct ThroughputReport {
  // Times of one sample on one core, in seconds.
  double read_s = 0;       // the bytes of the file, from the system's cache if they are there
  double decode_s = 0;     // the pixels that the transforms need
  double transform_s = 0;  // the rest: resizing, colours, conversion
  double waiting_s = 0;    // part of read_s: waits for storage
  double bytes = 0;        // of a file
  double output_bytes = 0;
  double storage_bytes = 0;  // bytes of a file that came from storage
  std::vector<WorkerRate> rates;
  std::string limit;   // "decode", "transform", "disk" or "memory"
  std::string advice;  // the change to make, with the key to set
};

// Reads random samples with each number of `workers`, each time for `duration`. Starts threads. DataError: those of the
// source.
ThroughputReport measure_throughput(const std::shared_ptr<const SampleSource>& source,
                                    const std::vector<Transform>& transforms, const PictureOptions& options,
                                    const std::vector<int>& workers, std::chrono::duration<double> duration);

}  // namespace dtrain::data
