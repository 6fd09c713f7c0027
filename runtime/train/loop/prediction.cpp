// `dtrain predict`: the model's outputs for the validation data, in a file that rank 0 writes.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/config/experiment.h"
#include "loop/random_seed.h"
#include "loop/validation.h"
#include "model/precision.h"
#include "model/weights.h"

namespace dtrain::train {
namespace {

static_assert(std::endian::native == std::endian::little, "both formats are written as the bytes lie in memory");

// The headers come before the data and hold the number of rows, so their room is kept.
constexpr std::size_t kHeader = 256;

struct NumpyType {
  at::ScalarType type;
  const char* name;
};
constexpr std::array kNumpyTypes{
    NumpyType{at::kFloat, "<f4"}, NumpyType{at::kDouble, "<f8"}, NumpyType{at::kHalf, "<f2"},
    NumpyType{at::kLong, "<i8"},  NumpyType{at::kInt, "<i4"},    NumpyType{at::kShort, "<i2"},
    NumpyType{at::kChar, "|i1"},  NumpyType{at::kByte, "|u1"},   NumpyType{at::kBool, "|b1"}};

const char* numpy_name(at::ScalarType type) {
  for (const NumpyType& known : kNumpyTypes) {
    if (known.type == type) return known.name;
  }
  throw Error(std::string("outputs of type ") + at::toString(type) + " cannot be written as .npy",
              "convert them in predict_batch()");
}

Json nested(const at::Tensor& row) {
  if (row.dim() == 0) {
    if (row.scalar_type() == at::kBool) return row.item<bool>();
    if (!row.is_floating_point()) return row.item<std::int64_t>();
    return number_or_text(row.item<double>());
  }
  Json list = Json::array();
  for (std::int64_t i = 0; i < row.size(0); ++i) list.push_back(nested(row[i]));
  return list;
}

// Rows of outputs in one of three formats, written as they come, so that the outputs of a data set need not fit into
// memory. One thread.
class PredictionFile {
 public:
  // Writes beside `path`, which finish() replaces. The name's end is the format: .npy (NumPy, version 1.0),
  // .safetensors (one tensor, `outputs`), or .jsonl (a line {"index", "output"} for each row). SystemError if the file
  // cannot be made.
  explicit PredictionFile(std::filesystem::path path);
  ~PredictionFile();  // without finish(): nothing is left
  PredictionFile& operator=(PredictionFile&&) = delete;

  // Appends rows, in host memory: a tensor [rows, ...]. Error if their type or the other dimensions differ from those
  // of earlier rows, or if the format has no such type. .npy has no bfloat16: such values are written as float32.
  void add(const at::Tensor& rows);
  // Completes the file; Error if there were no rows.
  void finish();

  std::vector<std::int64_t> shape() const;  // of all rows so far

 private:
  enum class Format { kNumpy, kSafetensors, kLines };
  void write(const char* bytes, std::size_t count);
  std::string header() const;

  const std::filesystem::path path_;
  const std::filesystem::path partial_;
  const Format format_;
  UniqueFd file_;
  std::int64_t rows_ = 0;
  std::vector<std::int64_t> row_;  // the shape of a row
  at::ScalarType type_ = at::kFloat;
  bool finished_ = false;
};

PredictionFile::PredictionFile(std::filesystem::path path)
    : path_(std::move(path)),
      partial_(path_.string() + ".part-" + random_hex(4)),
      format_(path_.extension() == ".npy"           ? Format::kNumpy
              : path_.extension() == ".safetensors" ? Format::kSafetensors
                                                    : Format::kLines),
      file_(::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (!file_) throw SystemError("cannot write " + partial_.string(), errno);
  if (format_ != Format::kLines) write(std::string(kHeader, ' ').data(), kHeader);
}

PredictionFile::~PredictionFile() {
  std::error_code ignored;
  if (!finished_) std::filesystem::remove(partial_, ignored);
}

void PredictionFile::write(const char* bytes, std::size_t count) {
  while (count > 0) {
    const ssize_t written = ::write(file_.get(), bytes, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw SystemError("cannot write " + partial_.string(), errno);
    bytes += written;
    count -= static_cast<std::size_t>(written);
  }
}

void PredictionFile::add(const at::Tensor& rows) {
  at::Tensor values = rows.contiguous();
  if (format_ == Format::kNumpy && values.scalar_type() == at::kBFloat16) values = values.to(at::kFloat);
  if (rows_ == 0) {
    row_ = values.sizes().slice(1).vec();
    type_ = values.scalar_type();
    if (format_ == Format::kNumpy) numpy_name(type_);
    if (format_ == Format::kSafetensors) safetensors_name(type_);
  } else if (values.sizes().slice(1) != at::IntArrayRef(row_) || values.scalar_type() != type_) {
    throw Error("predict_batch() has returned rows of shape " + Json(values.sizes().slice(1).vec()).dump() +
                    " and type " + at::toString(values.scalar_type()) + " after rows of shape " + Json(row_).dump() +
                    " and type " + at::toString(type_),
                "return rows of one form in all batches, or pad them to the same length");
  }
  if (format_ == Format::kLines) {
    std::string lines;
    for (std::int64_t i = 0; i < values.size(0); ++i) {
      lines += to_line(Json{{"index", rows_ + i}, {"output", nested(values[i])}}) + "\n";
    }
    write(lines.data(), lines.size());
  } else {
    write(static_cast<const char*>(values.data_ptr()), values.nbytes());
  }
  rows_ += values.size(0);
}

std::vector<std::int64_t> PredictionFile::shape() const {
  std::vector<std::int64_t> shape = row_;
  shape.insert(shape.begin(), rows_);
  return shape;
}

std::string PredictionFile::header() const {
  const auto padded = [](std::string text, std::size_t prefix) {
    if (prefix + text.size() > kHeader) throw Error("the outputs have too many dimensions for the file's header");
    text.resize(kHeader - prefix, ' ');
    return text;
  };
  if (format_ == Format::kNumpy) {
    std::string shape;
    for (const std::int64_t size : this->shape()) shape += std::to_string(size) + ", ";
    constexpr std::size_t kPrefix = 10;  // magic, version, length of the text
    std::string text = padded(
        "{'descr': '" + std::string(numpy_name(type_)) + "', 'fortran_order': False, 'shape': (" + shape + "), }",
        kPrefix);
    text.back() = '\n';
    const std::size_t length = text.size();
    const std::string magic = {
        '\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, static_cast<char>(length & 0xff), static_cast<char>(length >> 8)};
    return magic + text;
  }
  const auto shape = this->shape();
  const std::int64_t bytes = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()) *
                             static_cast<std::int64_t>(at::elementSize(type_));
  const std::string text = padded(
      Json{{"outputs", {{"dtype", safetensors_name(type_)}, {"shape", shape}, {"data_offsets", {0, bytes}}}}}.dump(),
      sizeof(std::uint64_t));
  std::string length;
  for (int shift = 0; shift < 64; shift += 8) length += static_cast<char>(text.size() >> shift & 0xff);
  return length + text;
}

void PredictionFile::finish() {
  if (rows_ == 0) throw Error("the validation data has no samples, so there is nothing to predict");
  if (format_ != Format::kLines) {
    if (::lseek(file_.get(), 0, SEEK_SET) < 0) throw SystemError("cannot write " + partial_.string(), errno);
    write(header().data(), kHeader);
  }
  file_.reset();
  std::filesystem::rename(partial_, path_);
  finished_ = true;
}

}  // namespace

void Validation::predict(const std::filesystem::path& path, std::int64_t batch, std::int64_t epoch) {
  std::optional<PredictionFile> file;
  if (session_.world().rank == 0) file.emplace(path);
  std::int64_t round = 0;
  // In each round a rank has a batch or, near the end of the data, none. The batches of a round follow in rank order.
  const auto exchange = [&](const at::Tensor& rows) {
    const at::Tensor all = gather_rows(session_, "predict_batch()", "train/predicted/" + std::to_string(round++), rows);
    if (all.defined() && file) file->add(all);
    return all.defined();
  };
  each_batch(batch, [&](const Batch& part) {
    const std::int64_t number = round * session_.world().size + session_.world().rank;
    seed_draws_alike(session_, Draws::kPrediction, number);
    exchange(predicted(part));
  });
  while (exchange({})) {
  }
  if (!file) return;
  file->finish();
  session_.write_metrics({{"kind", "prediction"}, {"batch", batch}, {"epoch", epoch}, {"shape", file->shape()}});
}

at::Tensor Validation::predicted(const Batch& batch) {
  const Autocast autocast(autocast_type(session_.experiment().optimizations.mixed_precision), context_.device());
  at::Tensor rows = trial_.predict_batch(batch);
  if (rows.defined() && rows.dim() > 0 && rows.size(0) == batch.samples) return rows;
  throw Error("predict_batch() has returned " +
                  (rows.defined() ? "a tensor of shape " + Json(rows.sizes().vec()).dump() : std::string("no tensor")) +
                  " for a batch of " + count_of(batch.samples, "sample"),
              "return a tensor whose first dimension counts the samples");
}

}  // namespace dtrain::train
