#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/data/formats.h"
#include "dtrain/data/image.h"
#include "dtrain/data/image_folder.h"
#include "dtrain/data/sample.h"
#include "dtrain/data/shards.h"
#include "dtrain/data/tools.h"
#include "dtrain/data/transforms.h"

namespace dtrain::cli {
namespace {

// The pictures that a command reads.
struct PictureDataArguments {
  std::string what;  // an experiment file, a folder of pictures, or shards
  std::vector<std::string> overrides;
  bool validation = false;
};

struct PictureData {
  std::string name;    // the place of the pictures
  std::string format;  // "image_folder" or "shards"
  std::shared_ptr<data::SampleSource> source;
  std::vector<data::Transform> transforms;
  data::PictureOptions options;
  std::vector<std::string> classes;  // their names, where they are known
  std::uint64_t seed = 0;
};

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

// Adds DATA, --set and --validation.
void add_picture_data(CLI::App& command, PictureDataArguments& arguments) {
  command
      .add_option("DATA", arguments.what,
                  "An experiment file, a folder with a folder of pictures for each class, or shards ('train-*.tar')")
      ->required();
  command.add_option("--set", arguments.overrides, "Of an experiment: section.key=value, as for dtrain launch")
      ->type_name("KEY=VALUE");
  command.add_flag("--validation", arguments.validation, "Of an experiment: data.validation instead of data.training");
}

// ConfigError if the experiment has no pictures; DataError as the formats'.
PictureData open_picture_data(const PictureDataArguments& arguments) {
  const std::filesystem::path ending = std::filesystem::path(arguments.what).extension();
  if (ending == ".yaml" || ending == ".yml") return of_experiment(arguments);
  if (arguments.validation || !arguments.overrides.empty()) {
    throw ConfigError("--validation and --set are for experiment files, and " + arguments.what + " is none");
  }
  PictureData found;
  found.name = arguments.what;
  // The most common transforms of pictures.
  found.transforms = {data::RandomResizedCrop{.size = 224}, data::HorizontalFlip{}, data::Normalize{}};
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

struct PackArguments {
  std::vector<std::string> input;
  std::string output;
  std::string name = "shard";
  std::uint64_t shard_megabytes = 256;
  std::uint64_t seed = 0;
  bool keep_order = false, unchecked = false, force = false;
  std::string path_column = "path", class_column = "class";
};

void show_progress(std::int64_t done, std::int64_t all) {
  if (::isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r%lld of %lld pictures%s", static_cast<long long>(done), static_cast<long long>(all),
               done == all ? "\n" : "");
}

bool is_table(const std::filesystem::path& path) {
  return path.extension() == ".csv";
}

void pack_text_files(const PackArguments& arguments) {
  std::vector<std::filesystem::path> texts(arguments.input.begin(), arguments.input.end());
  const data::PackedTokens packed = data::pack_texts(texts, arguments.output, arguments.force);
  std::printf("%s: %lld tokens (uint16), those from 0 to 255 are bytes, %lld ends a text\n", arguments.output.c_str(),
              static_cast<long long>(packed.tokens), static_cast<long long>(data::kEndOfText));
}

void pack_shards(const PackArguments& arguments, const data::ImageFolderFiles& pictures) {
  const data::PackedShards packed = data::pack_pictures(pictures, arguments.output,
                                                        {.name = arguments.name,
                                                         .shard_bytes = arguments.shard_megabytes << 20,
                                                         .shuffle = !arguments.keep_order,
                                                         .seed = arguments.seed,
                                                         .check = !arguments.unchecked,
                                                         .replace = arguments.force,
                                                         .progress = show_progress});
  const std::string classes =
      pictures.classes.empty() ? "" : ", " + std::to_string(pictures.classes.size()) + " classes (classes.txt)";
  std::printf("%s: %lld samples%s in %s, %s\n", arguments.output.c_str(), static_cast<long long>(packed.samples),
              classes.c_str(), count_of(packed.shards.size(), "shard").c_str(),
              format_bytes(static_cast<double>(packed.bytes)).c_str());
  if (!pictures.left_out.empty()) std::printf("left out: %s\n", pictures.left_out.c_str());
  std::printf("in an experiment: data: {format: shards, training: {files: %s/%s-*.tar, transforms: [...]}}\n",
              arguments.output.c_str(), arguments.name.c_str());
}

void pack(const PackArguments& arguments) {
  const std::filesystem::path first = arguments.input.front();
  if (std::filesystem::is_directory(first) || is_table(first)) {
    if (arguments.input.size() > 1) {
      throw ConfigError("one folder or one .csv file is packed at a time, and " +
                        std::to_string(arguments.input.size()) + " inputs are given");
    }
    pack_shards(arguments, is_table(first)
                               ? data::read_picture_list(first, arguments.path_column, arguments.class_column)
                               : data::list_image_folder(first));
    return;
  }
  pack_text_files(arguments);
}

void add_data_pack(CLI::App& data) {
  auto arguments = std::make_shared<PackArguments>();
  CLI::App* command = data.add_subcommand("pack", "Write pictures as shards, or texts as tokens");
  command->add_option("INPUT", arguments->input, "A folder with a folder for each class, a .csv file, or text files")
      ->required();
  command->add_option("-o,--output", arguments->output, "The folder of the shards, or the file of the tokens")
      ->required()
      ->type_name("PATH");
  command->add_option("--name", arguments->name, "Shards are NAME-000000.tar and so on (default: shard)")
      ->type_name("NAME");
  command->add_option("--shard-size", arguments->shard_megabytes, "MiB of a shard, about (default: 256)")
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("MIB");
  command->add_option("--seed", arguments->seed, "Of the random order of the samples (default: 0)")->type_name("SEED");
  command->add_flag("--keep-order", arguments->keep_order, "Keep the order of the input; classes are then not mixed");
  command->add_flag("--no-check", arguments->unchecked, "Do not decode the pictures; look at their headers alone");
  command->add_flag("--force", arguments->force, "Replace shards of this name, or the file, if they are there already");
  command->add_option("--path-column", arguments->path_column, "Of a .csv file (default: path)")->type_name("NAME");
  command->add_option("--class-column", arguments->class_column, "Of a .csv file (default: class)")->type_name("NAME");
  command->footer(
      "A .csv file has a line of names, then a line for each picture: its path, relative to the file's folder, and "
      "its\n"
      "class. Text files (UTF-8) become one file of tokens, a token for each byte; each text ends with token 256.\n"
      "Samples are written in a random order, so that each shard has all classes.");
  command->callback([arguments] { pack(*arguments); });
}

struct InspectArguments {
  PictureDataArguments data;
  std::int64_t samples = 1000;
  bool check = false, json = false;
};

struct PictureFacts {
  std::int64_t looked_at = 0;
  std::map<std::int64_t, std::int64_t> of_class;  // samples
  std::vector<std::int64_t> bytes;
  std::vector<int> widths, heights;
  std::vector<std::string> damaged;
};

template <typename Number>
Json spread(std::vector<Number> values) {
  if (values.empty()) return nullptr;
  std::sort(values.begin(), values.end());
  return {{"min", values.front()}, {"median", values[values.size() / 2]}, {"max", values.back()}};
}

// Reads samples from all over the data set.
PictureFacts look(const PictureData& data, const InspectArguments& arguments) {
  PictureFacts facts;
  const std::int64_t all = data.source->size();
  facts.looked_at = arguments.check ? all : std::min(arguments.samples, all);
  for (std::int64_t i = 0; i < facts.looked_at; ++i) {
    const std::int64_t number = i * all / facts.looked_at;
    try {
      const data::Sample sample = data.source->read({}, number);
      std::int64_t label = 0;
      std::memcpy(&label, sample.values[1].data.get(), sizeof label);
      ++facts.of_class[label];
      const std::span<const std::byte> file(sample.values[0].data.get(), sample.values[0].bytes());
      facts.bytes.push_back(static_cast<std::int64_t>(file.size()));
      const data::Size size = arguments.check ? data::decode_image(file).size() : data::image_size(file);
      facts.widths.push_back(size.width);
      facts.heights.push_back(size.height);
    } catch (const data::ImageError& error) {
      facts.damaged.push_back(data.source->where(number) + ": " + error.what() + " (byte " +
                              std::to_string(error.offset()) + ")");
    } catch (const DataError& error) {  // an empty file, or one that cannot be read
      facts.damaged.push_back(describe(error));
    }
  }
  return facts;
}

Json to_json(const PictureData& data, const PictureFacts& facts) {
  Json classes = Json::array();
  for (const auto& [label, count] : facts.of_class) {
    const bool known = label >= 0 && static_cast<std::size_t>(label) < data.classes.size();
    classes.push_back({{"class", label},
                       {"name", known ? Json(data.classes[static_cast<std::size_t>(label)]) : Json()},
                       {"samples", count}});
  }
  return {{"data", data.name},
          {"format", data.format},
          {"samples", data.source->size()},
          {"blocks", data.source->blocks().samples.size()},
          {"looked_at", facts.looked_at},
          {"classes", std::move(classes)},
          {"bytes", spread(facts.bytes)},
          {"width", spread(facts.widths)},
          {"height", spread(facts.heights)},
          {"damaged", facts.damaged}};
}

std::string range_text(const Json& spread) {
  return spread["min"].dump() + " to " + spread["max"].dump() + ", median " + spread["median"].dump();
}

std::string to_text(const Json& json) {
  constexpr std::size_t kShownClasses = 20;
  std::string text = json["data"].get<std::string>() + " (" + json["format"].get<std::string>() +
                     "): " + json["samples"].dump() + " samples; of " + json["looked_at"].dump() + " of them:\n";
  if (!json["bytes"].is_null()) {
    text += "  a file: " + format_bytes(json["bytes"]["min"].get<double>()) + " to " +
            format_bytes(json["bytes"]["max"].get<double>()) + ", median " +
            format_bytes(json["bytes"]["median"].get<double>()) + "\n";
  }
  if (!json["width"].is_null()) {
    text += "  width:  " + range_text(json["width"]) + "\n  height: " + range_text(json["height"]) + "\n";
  }
  const Json& classes = json["classes"];
  text += "  " + count_of(classes.size(), "class") + ":\n";
  for (std::size_t i = 0; i < std::min(classes.size(), kShownClasses); ++i) {
    const Json& of_class = classes[i];
    text += "    " + of_class["class"].dump() +
            (of_class["name"].is_null() ? "" : " (" + of_class["name"].get<std::string>() + ")") + ": " +
            of_class["samples"].dump() + "\n";
  }
  if (classes.size() > kShownClasses) text += "    … (--json has all)\n";
  for (const Json& damage : json["damaged"]) text += "  DAMAGED: " + damage.get<std::string>() + "\n";
  return text;
}

void add_data_inspect(CLI::App& data, ExitCode* exit_code) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command = data.add_subcommand("inspect", "Show what a data set of pictures has: samples, classes, sizes");
  add_picture_data(*command, arguments->data);
  command->add_option("--samples", arguments->samples, "Read so many, from all over the data set (default: 1000)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->type_name("N");
  command->add_flag("--check", arguments->check, "Decode every picture");
  command->add_flag("--json", arguments->json, "As one JSON object");
  command->footer("Exit codes: 0, or 1 if a picture is damaged.");
  command->callback([arguments, exit_code] {
    const PictureData found = open_picture_data(arguments->data);
    const PictureFacts facts = look(found, *arguments);
    Json json = to_json(found, facts);
    print_answer(
        arguments->json, [&] { return std::move(json); }, [&] { return to_text(json); });
    *exit_code = facts.damaged.empty() ? ExitCode::kDone : ExitCode::kRunFailed;
  });
}

struct BenchArguments {
  PictureDataArguments data;
  std::vector<int> workers;
  double seconds = 3;
  bool json = false;
};

// Returns 1, 2, 4, … and the number of cores.
std::vector<int> usual_workers() {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<int> workers;
  for (int count = 1; count < cores; count *= 2) workers.push_back(count);
  workers.push_back(cores);
  return workers;
}

Json to_json(const data::ThroughputReport& report) {
  Json rates = Json::array();
  for (const data::WorkerRate& rate : report.rates) {
    rates.push_back({{"workers", rate.workers}, {"samples_per_second", rate.samples_per_second}});
  }
  return {{"rates", std::move(rates)},
          {"read_s", report.read_s},
          {"decode_s", report.decode_s},
          {"transform_s", report.transform_s},
          {"waiting_s", report.waiting_s},
          {"bytes", report.bytes},
          {"storage_bytes", report.storage_bytes},
          {"output_bytes", report.output_bytes},
          {"limit", report.limit},
          {"advice", report.advice}};
}

std::string duration(double seconds) {
  return format_duration(std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(seconds)));
}

std::string to_text(const PictureData& data, const data::ThroughputReport& report) {
  std::string text = data.name + ": " + std::to_string(data.source->size()) +
                     " samples\n  one sample on one core: read " + duration(report.read_s) + " (" +
                     format_bytes(report.bytes) + "), decode " + duration(report.decode_s) + ", transform " +
                     duration(report.transform_s) + " (" + format_bytes(report.output_bytes) + ")\n";
  for (const data::WorkerRate& rate : report.rates) {
    text += "  " + std::to_string(rate.workers) + (rate.workers == 1 ? " worker:  " : " workers: ") +
            format_rate(rate.samples_per_second) + " samples/s\n";
  }
  return text + "  limit: " + report.limit + "; " + report.advice + "\n";
}

void add_data_bench(CLI::App& data) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* command =
      data.add_subcommand("bench", "Measure how many samples a second this machine prepares, without training");
  add_picture_data(*command, arguments->data);
  command
      ->add_option("--workers", arguments->workers,
                   "Numbers of threads (default: 1, 2, 4 and so on, to that of the cores)")
      ->check(CLI::Range(1, 256))
      ->type_name("N");
  command->add_option("--seconds", arguments->seconds, "For each number of workers (default: 3)")
      ->check(CLI::Range(0.05, 600.0))
      ->type_name("S");
  command->add_flag("--json", arguments->json, "As one JSON object");
  command->footer(
      "The limit is disk (waiting for storage), decode or transform (computing), or memory (more workers bring "
      "little).\n"
      "Files that the system has in its cache are read from there: a first run on a large data set tells more.");
  command->callback([arguments] {
    const PictureData found = open_picture_data(arguments->data);
    const auto report = data::measure_throughput(found.source, found.transforms, found.options,
                                                 arguments->workers.empty() ? usual_workers() : arguments->workers,
                                                 std::chrono::duration<double>(arguments->seconds));
    print_answer(
        arguments->json, [&] { return to_json(report); }, [&] { return to_text(found, report); });
  });
}

struct ShowArguments {
  PictureDataArguments data;
  std::string output = "data.html";
  std::int64_t samples = 16, epochs = 4;
};

void add_data_show(CLI::App& data) {
  auto arguments = std::make_shared<ShowArguments>();
  CLI::App* command = data.add_subcommand("show", "Write a page (HTML) with the first samples after their transforms");
  add_picture_data(*command, arguments->data);
  command->add_option("-o,--output", arguments->output, "The page (default: data.html)")->type_name("FILE");
  command->add_option("--samples", arguments->samples, "How many (default: 16)")
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
  command->add_option("--epochs", arguments->epochs, "Each as so many epochs have it (default: 4)")
      ->check(CLI::Range(1, 100))
      ->type_name("N");
  command->footer(
      "Without an experiment the transforms are random_resized_crop to 224, horizontal_flip and normalize. The page is "
      "one\n"
      "file that opens offline.");
  command->callback([arguments] {
    const PictureData found = open_picture_data(arguments->data);
    write_file_atomic(arguments->output, data::sample_page(found.source, found.transforms, found.options,
                                                           {.title = found.name,
                                                            .samples = arguments->samples,
                                                            .epochs = arguments->epochs,
                                                            .seed = found.seed,
                                                            .classes = found.classes}));
    std::printf("%s\n", std::filesystem::absolute(arguments->output).lexically_normal().c_str());
  });
}

}  // namespace

void add_data(CLI::App& app, ExitCode* exit_code) {
  CLI::App* command = app.add_subcommand("data", "Pack, inspect, measure and show data sets of pictures");
  command->require_subcommand(1);
  add_data_pack(*command);
  add_data_inspect(*command, exit_code);
  add_data_bench(*command);
  add_data_show(*command);
  command->footer(R"(examples:
  dtrain data pack photos/train -o shards      a folder with a folder for each class as tar shards
  dtrain data inspect 'shards/shard-*.tar'     how many samples, classes and sizes; --check decodes them all
  dtrain data show experiment.yaml             a page with pictures as the model sees them
  dtrain data bench experiment.yaml            samples a second for numbers of workers, and what the limit is)");
}

}  // namespace dtrain::cli
