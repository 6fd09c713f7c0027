#include "picture_data.h"

#include <filesystem>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/data/formats.h"
#include "dtrain/data/image_folder.h"
#include "dtrain/data/shards.h"

namespace dtrain::cli {

namespace {

// Returns the most common transforms of pictures, for data without an experiment.
std::vector<data::Transform> usual_transforms() {
  return {data::RandomResizedCrop{.size = 224}, data::HorizontalFlip{}, data::Normalize{}};
}

// Reads the names of classes that `dtrain data pack` has written beside the shards.
std::vector<std::string> class_names_beside(const std::filesystem::path& shards) {
  const std::filesystem::path file = shards.parent_path() / "classes.txt";
  std::vector<std::string> names;
  if (!std::filesystem::exists(file)) return names;
  for (const std::string& line : split(read_file(file), '\n')) {
    if (!line.empty()) names.push_back(line);
  }
  return names;
}

bool is_experiment(const std::filesystem::path& path) {
  return path.extension() == ".yaml" || path.extension() == ".yml";
}

PictureData of_experiment(const PictureDataArguments& arguments) {
  const config::Experiment experiment = config::read_experiment(arguments.what, arguments.overrides);
  if (!experiment.model) {
    throw ConfigError(arguments.what + ": has no model:, and its program reads its data itself",
                      "give the folder of pictures or the shards instead");
  }
  const config::ModelData& data = experiment.model->data;
  if (arguments.validation && !data.validation) throw ConfigError(arguments.what + ": has no data.validation");
  const data::Source& source = arguments.validation ? *data.validation : data.training;
  PictureData found;
  found.format = dtrain::word_of(data.format);
  found.seed = static_cast<std::uint64_t>(experiment.experiment_seed);
  found.transforms =
      config::transforms_of(arguments.validation ? data.transforms.validation : data.transforms.training);
  std::visit(
      [&](const auto& format) {
        if constexpr (data::kHasPictures<std::decay_t<decltype(format)>>) {
          found.source = format.open_samples(source, data::no_sharing());
          found.options.scaled_decoding = format.scaled_decoding;
        } else {
          throw ConfigError(arguments.what + ": its data.format is " + format.kWord + ", which has no pictures");
        }
      },
      data.format);
  if (const auto folder = source.find("folder"); folder != source.end()) {
    found.name = folder->second;
    found.classes = data::list_image_folder(folder->second).classes;
  } else {
    found.name = source.at("files");
    found.classes = class_names_beside(found.name);
  }
  return found;
}

}  // namespace

void add_picture_data(CLI::App& command, PictureDataArguments& arguments) {
  command
      .add_option("DATA", arguments.what,
                  "An experiment file, a folder with a folder of pictures for each class, or shards ('train-*.tar')")
      ->required();
  command.add_option("--set", arguments.overrides, "Of an experiment: section.key=value, as for dtrain launch")
      ->type_name("KEY=VALUE");
  command.add_flag("--validation", arguments.validation, "Of an experiment: data.validation instead of data.training");
}

PictureData open_picture_data(const PictureDataArguments& arguments) {
  if (is_experiment(arguments.what)) return of_experiment(arguments);
  if (arguments.validation || !arguments.overrides.empty()) {
    throw ConfigError("--validation and --set are for experiment files, and " + arguments.what + " is none");
  }
  PictureData found;
  found.name = arguments.what;
  found.transforms = usual_transforms();
  if (std::filesystem::is_directory(arguments.what)) {
    const data::ImageFolderFiles listed = data::list_image_folder(arguments.what);
    found.format = data::ImageFolder::kWord;
    found.classes = listed.classes;
    found.source = data::load_image_folder(arguments.what);
  } else {
    found.format = data::Shards::kWord;
    found.source = data::load_shards(arguments.what);
    found.classes = class_names_beside(arguments.what);
  }
  return found;
}

}  // namespace dtrain::cli
