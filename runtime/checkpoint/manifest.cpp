#include "dtrain/checkpoint/checkpoint.h"

#include <set>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/crc32c.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "storage.h"

namespace dtrain::checkpoints {
namespace {

constexpr const char* kFormat = "dtrain checkpoint";
constexpr const char* kAlgorithm = "crc32c";
constexpr const char* kNoAlgorithm = "none";  // of a state in memory
constexpr std::string_view kLastLine = "\n\"manifest_checksum\":\"";
constexpr std::size_t kChecksumDigits = 8;
constexpr std::string_view kEnd = "\"}\n";
constexpr std::size_t kLargestManifest = 256 << 20;
constexpr int kDeepest = 100;
constexpr std::uint64_t kLargestFile = 1ull << 60;

std::optional<std::uint32_t> parse_checksum(std::string_view text) {
  const auto value = to_number<std::uint32_t>(text, 16);
  return value && checksum_text(*value) == text ? value : std::nullopt;  // eight digits, no capital letters
}

// Checks the checksum in the last line. DataError.
void check_own_checksum(std::string_view text) {
  const std::size_t tail = kLastLine.size() + kChecksumDigits + kEnd.size();
  if (text.size() < tail || !text.substr(text.size() - tail).starts_with(kLastLine) || !text.ends_with(kEnd)) {
    throw DataError("it is cut off or no manifest: its last line is not its checksum");
  }
  const auto body = text.substr(0, text.size() - tail);
  const auto digits = text.substr(text.size() - tail + kLastLine.size(), kChecksumDigits);
  const auto stored = parse_checksum(digits);
  if (const auto found = crc32c(body); !stored || *stored != found) {
    throw DataError("its checksum is " + checksum_text(found) + ", but it says " + std::string(digits));
  }
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.size() <= 255 && name != kManifestFile &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

Manifest manifest_from(const Json& json) {
  if (json.at("format") != kFormat) throw DataError("it is not one of a checkpoint");
  if (const auto& version = json.at("version"); version != kFormatVersion) {
    throw DataError("it has version " + version.dump() + " of the format, but this dtrain reads version " +
                        std::to_string(kFormatVersion),
                    "use the version of dtrain that wrote it, or a newer one");
  }
  Manifest manifest;
  const auto& algorithm = json.at("checksum");
  manifest.has_checksums = algorithm != kNoAlgorithm;
  if (manifest.has_checksums && algorithm != kAlgorithm) {
    throw DataError("its checksums are of the unknown kind " + algorithm.dump());
  }
  if (json.at("piece_bytes") != kPieceBytes) throw DataError("its piece_bytes is not " + std::to_string(kPieceBytes));
  manifest.about = about_from(json.at("about"));
  std::set<std::string> names;
  for (const Json& file : json.at("files")) {
    manifest.files.push_back(manifest_file_from(file, manifest.has_checksums));
    if (!names.insert(manifest.files.back().name).second) {
      throw DataError("it has the file '" + manifest.files.back().name + "' twice");
    }
  }
  return manifest;
}

}  // namespace

std::string checksum_text(std::uint32_t checksum) {
  return fmt::format("{:0{}x}", checksum, kChecksumDigits);
}

std::string rank_file(int rank) {
  return fmt::format("rank-{:04}.safetensors", rank);
}

Json to_json(const About& about) {
  Json json = {{"step", about.step},
               {"epoch", about.epoch},
               {"world_size", about.world_size},
               {"reason", about.reason},
               {"metric", about.metric},
               {"metric_value", or_null(about.metric_value)},
               {"smaller_is_better", about.smaller_is_better},
               {"time", about.time},
               {"run", about.run}};
  if (about.awaits_validation) json["awaits_validation"] = true;
  return json;
}

About about_from(const Json& json) {
  try {
    About about;
    about.step = json.at("step").get<std::int64_t>();
    about.epoch = json.at("epoch").get<std::int64_t>();
    about.world_size = json.at("world_size").get<int>();
    about.reason = json.at("reason").get<std::string>();
    about.metric = json.at("metric").get<std::string>();
    if (const Json& value = json.at("metric_value"); !value.is_null()) about.metric_value = value.get<double>();
    about.smaller_is_better = json.at("smaller_is_better").get<bool>();
    about.awaits_validation = json.value("awaits_validation", false);
    about.time = json.at("time").get<double>();
    about.run = json.at("run");
    if (about.step < 0 || about.epoch < 0 || about.world_size < 1) {
      throw DataError("its step, epoch or world_size is out of range");
    }
    return about;
  } catch (const Json::exception& error) {
    throw DataError(std::string("what it says about the checkpoint is malformed: ") + error.what());
  }
}

Json to_json(const ManifestFile& file) {
  Json checksums = Json::array();
  for (const std::uint32_t checksum : file.checksums) checksums.push_back(checksum_text(checksum));
  Json json = {{"name", file.name}, {"bytes", file.bytes}, {"checksums", std::move(checksums)}};
  if (!file.not_finite.empty()) json["not_finite"] = file.not_finite;
  return json;
}

ManifestFile manifest_file_from(const Json& json, bool has_checksums) {
  try {
    ManifestFile file;
    file.name = json.at("name").get<std::string>();
    if (!is_plain_name(file.name)) throw DataError("it has a file with the name '" + file.name + "'");
    const Json& bytes = json.at("bytes");
    if (!bytes.is_number_unsigned() || bytes.get<std::uint64_t>() > kLargestFile) {
      throw DataError("the size of the file '" + file.name + "' is " + bytes.dump());
    }
    file.bytes = bytes.get<std::uint64_t>();
    file.not_finite = json.value("not_finite", "");
    for (const Json& text : json.at("checksums")) {
      const auto checksum = parse_checksum(text.get<std::string>());
      if (!checksum) throw DataError("the file '" + file.name + "' has the malformed checksum " + text.dump());
      file.checksums.push_back(*checksum);
    }
    if (file.checksums.size() != (has_checksums ? (file.bytes + kPieceBytes - 1) / kPieceBytes : 0)) {
      throw DataError("the file '" + file.name + "' has " + std::to_string(file.checksums.size()) + " checksums for " +
                      std::to_string(file.bytes) + " bytes");
    }
    return file;
  } catch (const Json::exception& error) {
    throw DataError(std::string("its list of files is malformed: ") + error.what());
  }
}

std::string to_text(const Manifest& manifest) {
  std::string text = "{\"format\":\"" + std::string(kFormat) + "\",\"version\":" + std::to_string(kFormatVersion) +
                     ",\n\"about\":" + to_line(to_json(manifest.about)) + ",\n\"checksum\":\"" +
                     (manifest.has_checksums ? kAlgorithm : kNoAlgorithm) +
                     "\",\"piece_bytes\":" + std::to_string(kPieceBytes) + ",\n\"files\":[";
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    text += (i == 0 ? "\n" : ",\n") + to_line(to_json(manifest.files[i]));
  }
  text += "],";
  const std::string checksum = checksum_text(crc32c(text));
  return text.append(kLastLine).append(checksum).append(kEnd);
}

Manifest parse_manifest(std::string_view text) {
  check_own_checksum(text);
  const auto limit_depth = [](int depth, Json::parse_event_t, const Json&) {
    if (depth > kDeepest) throw DataError("it is nested too deeply");
    return true;
  };
  try {
    return manifest_from(Json::parse(text, limit_depth));
  } catch (const Json::exception& error) {
    throw DataError(std::string("it is malformed: ") + error.what());
  }
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  const auto path = checkpoint / kManifestFile;
  const std::string text = read_file(path, kLargestManifest);
  try {
    Manifest manifest = parse_manifest(text);
    const auto step = step_of_folder(checkpoint.filename().string());
    if (step && *step != manifest.about.step) {
      throw DataError("it is the manifest of step " + std::to_string(manifest.about.step));
    }
    return manifest;
  } catch (const DataError& error) {
    throw DataError(path.string() + ": " + error.what(), error.remedy());
  }
}

std::int64_t total_bytes(const std::vector<ManifestFile>& files) {
  std::int64_t total = 0;
  for (const ManifestFile& file : files) total += static_cast<std::int64_t>(file.bytes);
  return total;
}

std::string not_finite_weight(const std::vector<ManifestFile>& files) {
  for (const ManifestFile& file : files) {
    if (!file.not_finite.empty()) return file.name + ": " + file.not_finite;
  }
  return "";
}

}  // namespace dtrain::checkpoints
