// The pictures that a command of `dtrain data` reads. Private to the command line.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "dtrain/data/sample.h"
#include "dtrain/data/transforms.h"

namespace dtrain::cli {

struct PictureDataArguments {
  std::string what;  // an experiment file, a folder of pictures, or shards
  std::vector<std::string> overrides;
  bool validation = false;
};

// Adds DATA, --set and --validation.
void add_picture_data(CLI::App& command, PictureDataArguments& arguments);

struct PictureData {
  std::string name;    // the place of the pictures
  std::string format;  // "image_folder" or "shards"
  std::shared_ptr<data::SampleSource> source;
  std::vector<data::Transform> transforms;
  data::PictureOptions options;
  std::vector<std::string> classes;  // their names, where they are known
  std::uint64_t seed = 0;
};

// ConfigError if the experiment has no pictures; DataError as the formats'.
PictureData open_picture_data(const PictureDataArguments& arguments);

}  // namespace dtrain::cli
