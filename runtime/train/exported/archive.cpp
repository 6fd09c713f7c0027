#include "exported/archive.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain::exported {
namespace {

namespace fs = std::filesystem;
using caffe2::serialize::PyTorchStreamReader;

constexpr std::size_t kMostRecords = 200'000;
constexpr const char* kModels = "models/";
// PyTorch before 2.8 wrote this record, below the archive's root.
constexpr const char* kOldProgram = "serialized_exported_program.json";

bool has_zip_magic(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  char magic[4] = {};
  if (!stream) throw ConfigError("model: cannot read " + file.string(), "make it readable");
  stream.read(magic, sizeof(magic));
  return stream && std::string_view(magic, 4) == std::string_view("PK\x03\x04", 4);
}

// A file of safetensors begins with the length of a header, which is JSON.
bool is_safetensors(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  char begin[9] = {};
  std::uint64_t header = 0;
  if (!stream.read(begin, sizeof(begin))) return false;
  std::memcpy(&header, begin, sizeof(header));
  std::error_code code;
  return begin[8] == '{' && header < fs::file_size(file, code) && !code;
}

bool is_program(const std::string& record) {
  return record.starts_with(kModels) && record.ends_with(".json") && record.find('/', 7) == std::string::npos;
}

}  // namespace

std::string plain_message(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return first_line(torch_error ? torch_error->what_without_backtrace() : error.what());
}

bool is_exported_program(const fs::path& file) {
  if (!has_zip_magic(file)) return false;
  try {
    PyTorchStreamReader reader(file.string());
    if (reader.hasRecord("archive_format") || reader.hasRecord(kOldProgram)) return true;
    const auto records = reader.getAllRecords();
    return std::any_of(records.begin(), records.end(), is_program);
  } catch (const std::exception&) {
    return file.extension() == ".pt2";  // the archive is damaged: its name tells the kind
  }
}

Archive::Archive(fs::path file) : file_(std::move(file)) {
  std::error_code code;
  file_bytes_ = fs::file_size(file_, code);
  if (code) throw ConfigError("model: cannot read " + file_.string() + ": " + code.message(), "make it readable");
  try {
    reader_ = std::make_unique<PyTorchStreamReader>(file_.string());
    records_ = reader_->getAllRecords();
  } catch (const std::exception& error) {
    if (is_safetensors(file_)) {
      fail("is a file of safetensors, which has weights and no model",
           "save the model with torch.export.save(torch.export.export(model, inputs), \"net.pt2\"); "
           "initial_weights.file takes the weights");
    }
    fail("is damaged or cut off: " + plain_message(error));
  }
  if (records_.size() > kMostRecords) fail("has " + std::to_string(records_.size()) + " records");
  std::uint64_t bytes = 0;  // several records may claim one part of the file
  for (const std::string& record : records_) {
    bytes += size_of(record);
    if (bytes > file_bytes_) fail("has records that are longer than the file");
  }
  if (has(kOldProgram)) {
    fail("was written by an older PyTorch, which put its parts elsewhere",
         "load it in Python with torch.export.load() of PyTorch 2.8 or later, and save it again with "
         "torch.export.save()");
  }
  if (!has("archive_format") && has("constants.pkl")) {
    fail("is TorchScript, but its name is that of a file of torch.export",
         "rename it to *.pt, which is trained as TorchScript; or save the model with "
         "torch.export.save(torch.export.export(model, inputs), \"net.pt2\")");
  }
  if (!has("archive_format") && has("data.pkl")) {
    fail("is a file of torch.save(), which only Python reads",
         "save the model with torch.export.save(torch.export.export(model, inputs), \"net.pt2\"), and weights alone "
         "with safetensors, which initial_weights.file takes");
  }
  if (!has("archive_format") || text("archive_format", 16) != "pt2")
    fail("is no archive of torch.export.save(): its record archive_format is not pt2");
  for (const std::string& record : records_) {
    if (!is_program(record)) continue;
    if (!program_.empty()) fail("holds several exported programs", "save one program a file");
    program_ = record.substr(7, record.size() - 7 - 5);
  }
  if (program_.empty())
    fail("holds no exported program, but perhaps a compiled one", "save it with torch.export.save(program, file)");
}

Archive::~Archive() = default;

bool Archive::has(const std::string& record) const {
  try {
    return reader_->hasRecord(record);
  } catch (const std::exception& error) {
    fail("is damaged or cut off: " + plain_message(error));
  }
}

// A record is no longer than the file, for torch.export does not compress records.
std::size_t Archive::size_of(const std::string& record) const {
  std::size_t bytes = 0;
  try {
    if (!has(record)) fail("has no record " + record);
    bytes = reader_->getRecordSize(record);
  } catch (const c10::Error& error) {
    fail("has a damaged record " + record + ": " + plain_message(error));
  }
  if (bytes > file_bytes_) {
    fail("says that its record " + record + " has " + std::to_string(bytes) + " bytes, but the file has " +
         std::to_string(file_bytes_));
  }
  return bytes;
}

template <typename Read>
auto Archive::read(const std::string& record, Read read) const {
  try {
    return read(size_of(record));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail("has a damaged record " + record + ": " + plain_message(error));
  }
}

std::string Archive::text(const std::string& record, std::size_t limit) const {
  return read(record, [&](std::size_t bytes) {
    if (bytes > limit) {
      fail("has a record " + record + " of " + std::to_string(bytes) + " bytes, more than the " +
           std::to_string(limit) + " that are read");
    }
    std::string content(bytes, '\0');
    reader_->getRecord(record, content.data(), bytes);
    return content;
  });
}

at::Tensor Archive::bytes(const std::string& record) const {
  return read(record, [&](std::size_t bytes) {
    at::Tensor content = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
    if (bytes > 0) reader_->getRecord(record, content.data_ptr(), bytes);
    return content;
  });
}

void Archive::fail(const std::string& what, const std::string& remedy) const {
  throw ConfigError(
      "model: " + file_.string() + " " + what,
      remedy.empty() ? "export the model again and save it with torch.export.save() (docs/exporting.md)" : remedy);
}

}  // namespace dtrain::exported
