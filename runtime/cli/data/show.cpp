#include <cstdio>
#include <filesystem>
#include <memory>

#include "commands.h"
#include "data/picture_data.h"
#include "dtrain/base/file.h"
#include "dtrain/data/sample_page.h"

namespace dtrain::cli {
namespace {

struct ShowArguments {
  PictureDataArguments data;
  std::string output = "data.html";
  std::int64_t samples = 16, epochs = 4;
};

}  // namespace

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

}  // namespace dtrain::cli
