#include "dtrain/data/pack.h"

#include <cstdio>
#include <filesystem>
#include <memory>

#include <unistd.h>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/base/units.h"

namespace dtrain::cli {
namespace {

struct PackArguments {
  std::vector<std::string> input;
  std::string output;
  std::string name = "shard";
  std::uint64_t shard_megabytes = 256;
  std::uint64_t seed = 0;
  bool keep_order = false, unchecked = false, force = false;
  std::string path_column = "path", class_column = "class";
};

// Prints one line on a terminal, which the next one replaces.
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

}  // namespace

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

}  // namespace dtrain::cli
