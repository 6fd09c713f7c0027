#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "commands.h"
#include "data/picture_data.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/base/units.h"
#include "dtrain/data/image.h"
#include "runs/run_command.h"

namespace dtrain::cli {
namespace {

struct InspectArguments {
  PictureDataArguments data;
  std::int64_t samples = 1000;
  bool check = false, json = false;
};

struct Facts {
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
Facts look(const PictureData& data, const InspectArguments& arguments) {
  Facts facts;
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

Json to_json(const PictureData& data, const Facts& facts) {
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
  return std::to_string(spread["min"].get<std::int64_t>()) + " to " +
         std::to_string(spread["max"].get<std::int64_t>()) + ", median " +
         std::to_string(spread["median"].get<std::int64_t>());
}

std::string to_text(const Json& json) {
  constexpr std::size_t kShownClasses = 20;
  std::string text = json["data"].get<std::string>() + " (" + json["format"].get<std::string>() +
                     "): " + std::to_string(json["samples"].get<std::int64_t>()) + " samples; of " +
                     std::to_string(json["looked_at"].get<std::int64_t>()) + " of them:\n";
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
    const Json& one = classes[i];
    text += "    " + std::to_string(one["class"].get<std::int64_t>()) +
            (one["name"].is_null() ? "" : " (" + one["name"].get<std::string>() + ")") + ": " +
            std::to_string(one["samples"].get<std::int64_t>()) + "\n";
  }
  if (classes.size() > kShownClasses) text += "    … (--json has all)\n";
  for (const Json& damage : json["damaged"]) text += "  DAMAGED: " + damage.get<std::string>() + "\n";
  return text;
}

}  // namespace

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
    const Facts facts = look(found, *arguments);
    Json json = to_json(found, facts);
    print_answer(
        arguments->json, [&] { return std::move(json); }, [&] { return to_text(json); });
    *exit_code = facts.damaged.empty() ? ExitCode::kDone : ExitCode::kRunFailed;
  });
}

}  // namespace dtrain::cli
