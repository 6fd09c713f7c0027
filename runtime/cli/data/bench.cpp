#include <algorithm>
#include <cstdio>
#include <memory>
#include <thread>

#include "commands.h"
#include "data/picture_data.h"
#include "dtrain/base/json.h"
#include "dtrain/base/units.h"
#include "dtrain/data/throughput.h"
#include "runs/run_command.h"

namespace dtrain::cli {
namespace {

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

}  // namespace

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

}  // namespace dtrain::cli
