// Data sets of files and of generated numbers. Those of tensors with names are in dtrain/data/safetensors.h, those of
// pictures in dtrain/data/image_folder.h and dtrain/data/shards.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/data/dataset.h"

namespace dtrain::data {

// IDX files (the MNIST format: http://yann.lecun.com/exdb/mnist), plain or gzip. The first bytes decide whether a file
// is gzip, not its name.

// Images ("image": uint8, the file's dimensions without the first) and labels ("label": int64). The whole set is in
// memory, once per host. DataError names the file, the offset and the fault: magic number, type, truncated data, bytes
// after the end, different counts, damaged gzip data. In a compressed file, offsets count decompressed bytes.
std::shared_ptr<Dataset> read_idx(const std::filesystem::path& images, const std::filesystem::path& labels,
                                  const HostShare& share = no_sharing());

// Arrays that numpy.save wrote (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html), plain or gzip.

// Fields "features" and "target", with the types of the files. The first dimension of both files counts samples; the
// rest is the shape of a sample. The whole set is in memory, once per host. Versions 1.0 to 3.0, C order,
// little-endian: uint8, int32, int64, float32, float64. DataError names the file, the offset, and the remedy: for other
// types, byte orders or memory orders, object and structured arrays, truncated data, bytes after the end, and different
// counts.
std::shared_ptr<Dataset> load_npy(const std::filesystem::path& features, const std::filesystem::path& target,
                                  const HostShare& share = no_sharing());

// Does the same as load_npy(), but samples are read from the files on demand, so the files may be larger than memory.
// DataError also for gzip data, and while reading for a file that has become shorter.
std::shared_ptr<Dataset> open_npy(const std::filesystem::path& features, const std::filesystem::path& target);

// Arrays without a header: samples one after the other, C order, little-endian, as numpy's tofile() writes them.

struct RawArray {
  std::filesystem::path file;
  ElementType type = ElementType::kUint8;
  std::vector<std::int64_t> shape;  // of a sample; empty: a number
};

// Fields "features" and "target". Samples are read from the files when they are needed, so the files may be larger than
// memory. DataError names the file and the offset: for a size that is no whole number of samples, different numbers of
// samples, no sample; and while reading, for a file that has become shorter.
std::shared_ptr<Dataset> open_raw(const RawArray& features, const RawArray& target);

// Tables of numbers as text (RFC 4180): a line for each sample, with a delimiter between its columns.

struct CsvOptions {
  // The first line names the columns. A line of numbers alone is refused, as it is probably a sample, unless it counts
  // four columns or more (0, 1, 2, 3 or 1, 2, 3, 4), as pandas does.
  bool header = true;
  char delimiter = ',';
  // The column of the target: its name, or its number from 1 on. Empty: the last one.
  std::string target;
  bool whole_target = true;  // the target is a whole number (a class): int64, else float32
};

// "features": float32 [all other columns], and "target": int64 or float32, a number. Plain or gzip. The whole table is
// in memory, once per host. A number too small for float32 is 0. DataError names the file, the offset, the line and the
// column: for a column that is no number or too large for float32, a missing or empty one, lines of different lengths,
// a target that is no whole number, an unknown column, or no line at all.
std::shared_ptr<Dataset> load_csv(const std::filesystem::path& file, const CsvOptions& options,
                                  const HostShare& share = no_sharing());

// A flat file of token ids, no header, little-endian, as tokenizing scripts write it (for example with numpy's tofile).

enum class TokenType : std::uint8_t { kUint16, kUint32, kInt32, kInt64 };

// "features": int64 [L], and "target": int64 [L], which begins one token later. Sample i has the tokens i*L to i*L+L;
// tokens after the last complete sample are not used. Samples are read from the file one by one. The ranks of a host
// share the system's page cache, so the file may be larger than memory. DataError names the file and the offset: for
// fewer tokens than one sample, or a size that is no multiple of a token's; and while reading, for a negative id, or a
// file that has become shorter.
std::shared_ptr<Dataset> load_tokens(const std::filesystem::path& file, TokenType type, std::int64_t sequence_length);

// Generated data of any size, with the same bits on every machine. The task is so easy that a model visibly learns it.

struct SyntheticOptions {
  std::int64_t samples = 10'000;
  // Index of the first sample in the endless sequence that `seed` defines. A validation set of the same task begins
  // where the training set ends.
  std::int64_t first = 0;
  std::int64_t features = 32;
  std::int64_t classes = 10;  // 0: a regression task
  std::int64_t targets = 1;   // outputs of a regression task
  std::uint64_t seed = 0;
};

// "features": float32 [features]. With classes also "label": int64 (each class is a point, and its samples lie around
// it). Without classes "target": float32 [targets] (linear in the features). Sample i is a function of (seed, i) and
// the sizes. In memory once per host. DataError names an invalid option.
std::shared_ptr<Dataset> make_synthetic(const SyntheticOptions& options, const HostShare& share = no_sharing());

}  // namespace dtrain::data
