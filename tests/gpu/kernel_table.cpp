// SPDX-License-Identifier: Apache-2.0
// Times every op at the shapes of CapPa B/16 and L/14 with batch 256, and compares it with limits
// of the device from the same run: bytes per second of a copy, operations per second of a large
// bf16 product.
//
//   kernel_table [--kind=cuda|cpu] [--models=b16,l14,tiny] [--filter=TEXT] [--seconds=S]
//                --json=FILE --markdown=FILE
// --seconds is the time per row. The program ends with 77 and a reason if there is no GPU.
// --models=tiny tries the program itself, with --kind=cpu or on the emulated GPU.
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "device/gpu.hpp"
#include "kernel_rows.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gemm.hpp"

namespace {

using namespace gpu_check;
using device::DType;
using device::Kind;
using device::Queue;

struct Options {
  Kind kind = Kind::cuda;
  std::vector<std::string> models{"b16", "l14"};
  std::string filter, json, markdown;
  double seconds = 0.05;
};

// Returns the seconds of one call: the best of three rounds, each of which queues calls for
// `seconds`.
double time_of(const std::function<void()>& call, Queue& queue, double seconds) {
  call();
  queue.synchronize();
  double best = 1e30;
  int64_t calls = 1;
  for (int round = 0; round < 3;) {
    const double begin = base::now_s();
    for (int64_t i = 0; i < calls; ++i) call();
    queue.synchronize();
    const double took = base::now_s() - begin;
    if (took < seconds / 3 && calls < 10000) {
      calls *= 2;
      continue;
    }
    best = std::min(best, took / double(calls));
    ++round;
  }
  return best;
}

struct Device {
  double copy = 0, product = 0;  // bytes/s, FLOP/s
};
Device measure_device(Queue& queue, double seconds, bool small) {
  Device d;
  {
    Memory memory(queue);
    const int64_t n = small ? 1 << 20 : 1 << 28;
    kernels::Copy copy{memory.zeros(n, DType::f32), memory.normals(n, DType::f32)};
    d.copy = double(cost(copy).bytes) / time_of([&] { kernels::run(copy, queue); }, queue, seconds);
  }
  Memory memory(queue);
  const int64_t n = small ? 512 : 8192;
  kernels::Gemm gemm{.c = memory.zeros(n * n, DType::bf16),
                     .a = memory.normals(n * n, DType::bf16),
                     .b = memory.normals(n * n, DType::bf16),
                     .m = n,
                     .n = n,
                     .k = n};
  d.product =
      double(cost(gemm).flops) / time_of([&] { kernels::run(gemm, queue); }, queue, seconds);
  return d;
}

struct Result {
  const Row* row;
  double seconds = 0;
  std::string failure;
};

double bound_of(const Row& row, const Device& device) {
  return std::max(double(row.cost.bytes) / device.copy, double(row.cost.flops) / device.product);
}

std::string table_of(const Model& model, const std::vector<Result>& results, const Device& device,
                     nlohmann::json& json) {
  std::string out = fmt::format(
      "\n### {}, batch {}\n\n| op | shape | us | GB/s | of copy | TFLOP/s | of product | bound | "
      "calls | ms per step |\n"
      "| --- | --- | --: | --: | --: | --: | --: | --: | --: | --: |\n",
      model.name, model.batch);
  double all = 0, bounds = 0;
  int failed = 0;
  json = {{"model", model.name}, {"batch", model.batch}, {"rows", nlohmann::json::array()}};
  for (const Result& r : results) {
    const Row& row = *r.row;
    nlohmann::json j = {{"op", row.op},
                        {"shape", row.shape},
                        {"per_step", row.per_step},
                        {"flops", row.cost.flops},
                        {"bytes", row.cost.bytes}};
    if (!r.failure.empty()) {
      out += fmt::format("| {} | {} | {} |\n", row.op, row.shape, r.failure);
      j["failure"] = r.failure;
      ++failed;
    } else {
      const double bytes = double(row.cost.bytes) / r.seconds,
                   flops = double(row.cost.flops) / r.seconds;
      const double bound = bound_of(row, device);
      out += fmt::format(
          "| {} | {} | {:.1f} | {:.0f} | {:.0f} % | {:.1f} | {:.0f} % | {:.0f} % | {:g} | {:.2f} "
          "|\n",
          row.op, row.shape, r.seconds * 1e6, bytes / 1e9, 100 * bytes / device.copy, flops / 1e12,
          100 * flops / device.product, 100 * bound / r.seconds, row.per_step,
          row.per_step * r.seconds * 1e3);
      all += row.per_step * r.seconds;
      bounds += row.per_step * bound;
      j["seconds"] = r.seconds;
      j["bound_seconds"] = bound;
    }
    json["rows"].push_back(j);
  }
  out += fmt::format(
      "\nSum of the ops {:.2f} ms per step, of their bounds {:.2f} ms: {:.0f} %; {:.0f} examples/s "
      "if nothing else took time{}.\n",
      all * 1e3, bounds * 1e3, 100 * bounds / all, double(model.batch) / all,
      failed ? fmt::format("; {} rows failed and are not in the sums", failed) : "");
  json["sum_seconds"] = all;
  json["bound_seconds"] = bounds;
  json["failed"] = failed;
  return out;
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i], key = arg.substr(0, arg.find('=')),
                      value = arg.substr(std::min(arg.size(), key.size() + 1));
    if (key == "--kind" && (value == "cpu" || value == "cuda"))
      o.kind = value == "cpu" ? Kind::cpu : Kind::cuda;
    else if (key == "--models")
      o.models = base::split(value, ',');
    else if (key == "--filter")
      o.filter = value;
    else if (key == "--seconds")
      o.seconds = std::stod(value);
    else if (key == "--json")
      o.json = value;
    else if (key == "--markdown")
      o.markdown = value;
    else
      base::fail(base::Exit::config,
                 "kernel_table: {} is none of --kind --models --filter --seconds --json --markdown",
                 arg);
  }
  return o;
}

int measure(const Options& options) {
  if (options.kind == Kind::cuda) {
    device::Gpus gpus = device::find_gpus();
    if (gpus.count == 0) {
      std::printf("skipped: %s\n", gpus.none_because.c_str());
      return 77;
    }
    device::use_gpu(0);
  }
  const std::map<std::string, Model> known{{"b16", b16()}, {"l14", l14()}, {"tiny", tiny()}};
  Queue queue(options.kind, 2);
  const Device device = measure_device(
      queue, options.seconds,
      options.kind == Kind::cpu || options.models == std::vector<std::string>{"tiny"});
  const std::string name = options.kind == Kind::cuda ? device::gpu_name() : "CPU";
  std::string markdown = fmt::format(
      "{}: copy {:.0f} GB/s, bf16 product {:.1f} TFLOP/s (measured in this run). `bound`: what the "
      "op would take at the better of both, in percent of what it took.\n",
      name, device.copy / 1e9, device.product / 1e12);
  nlohmann::json json = {{"device", name},
                         {"copy_bytes_per_s", device.copy},
                         {"product_flops", device.product},
                         {"models", nlohmann::json::array()}};
  int status = 0;
  for (const std::string& key : options.models) {
    if (!known.count(key))
      base::fail(base::Exit::config, "kernel_table: model {} is none of b16, l14, tiny", key);
    const std::vector<Row> rows = rows_of(known.at(key));
    std::vector<Result> results;
    for (const Row& row : rows) {
      if (row.op.find(options.filter) == std::string::npos) continue;
      Result r{&row, 0, ""};
      try {
        Memory memory(queue);
        const std::function<void()> call = row.prepare(memory, queue);
        r.seconds = time_of(call, queue, options.seconds);
      } catch (const base::Error& e) {
        r.failure = e.what();
        status = 1;
      }
      results.push_back(r);
      std::fprintf(stderr, "%-20s %-50s %10.1f us %s\n", row.op.c_str(), row.shape.c_str(),
                   r.seconds * 1e6, r.failure.c_str());
    }
    nlohmann::json model;
    markdown += table_of(known.at(key), results, device, model);
    json["models"].push_back(model);
  }
  if (options.markdown.empty())
    std::fputs(markdown.c_str(), stdout);
  else
    std::ofstream(options.markdown) << markdown;
  if (!options.json.empty()) std::ofstream(options.json) << json.dump(1) << "\n";
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return measure(parse(argc, argv));
  } catch (const base::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return int(e.code());
  }
}
