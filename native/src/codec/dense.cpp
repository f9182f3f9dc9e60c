// Writes what symbols and residuals read: 32 coders run backwards, their bits dealt out in the order they are wanted.
#include <algorithm>
#include <bit>
#include <memory>

#include "codec/draft.hpp"
#include "codec/encoding.hpp"

namespace solar::codec {

namespace {

// About the class whose mean is that of the block: half octaves, from the bits of the sum's square.
int nearest_class(std::uint64_t sum) {
  if (sum == 0) return 0;
  const auto mean = static_cast<float>(sum) / block;
  const auto square = std::bit_cast<std::uint32_t>(mean * mean * 1.41421356f);
  return std::clamp(static_cast<int>(square >> 23) - 127 + 10, 0, static_cast<int>(most_classes) - 1);
}

// The block's symbols where `low_bits` of each residual are stored as they are.
void symbols_of(const std::int32_t* residuals, int low_bits, std::uint8_t* symbols) {
  for (std::size_t i = 0; i < block; ++i) {
    const std::int32_t high = residuals[i] >> low_bits;
    symbols[i] = static_cast<std::uint8_t>(static_cast<std::uint32_t>(high) + 127 > 254 ? escape : high);
  }
}

// Classes from first to end - 1.
struct Window {
  int first, end;
};

// How the cheapest way to each class of a block's window came: from which of the window before.
struct Ways {
  Window window;
  std::uint8_t from[most_ways];
};

std::vector<std::uint8_t> way_back(const std::vector<Ways>& ways, const std::uint32_t* ends) {
  std::vector<std::uint8_t> chosen(ways.size());
  if (ways.empty()) return chosen;
  const Window window = ways.back().window;
  auto k = static_cast<std::size_t>(std::min_element(ends, ends + (window.end - window.first)) - ends);
  for (std::size_t b = ways.size(); b-- > 0; k = ways[b].from[k])
    chosen[b] = static_cast<std::uint8_t>(static_cast<std::size_t>(ways[b].window.first) + k);
  return chosen;
}

// The costs of a block in the classes worth a try.
Window block_costs(const std::int32_t* residuals, int near, const Encoding& encoding, std::uint32_t* costs) {
  std::uint8_t symbols[block];
  std::uint32_t sums[16];
  const int first = std::max(0, (near - 16) / 2), last = std::clamp((near - 12) / 2, 0, 24);
  for (int low = first; low <= last; ++low) {
    symbols_of(residuals, low, symbols);
    encoding_kernels().costs(symbols, encoding.costs.data()->data(), sums);
    if (low == 0) {
      std::copy_n(sums, 16, costs);
      continue;
    }
    const std::uint32_t beside = static_cast<std::uint32_t>(low) * block * 256;
    costs[14 + 2 * low] = sums[14] + beside;
    costs[15 + 2 * low] = sums[15] + beside;
  }
  return {first == 0 ? 0 : 14 + 2 * first, 16 + 2 * last};
}

// All symbols of a tile in the order of decoding, 32 a step, with their tables and what goes beside them.
struct Script {
  explicit Script(std::size_t blocks)
      : class_steps((blocks + block - 1) / block), steps(class_steps + blocks), tables(steps), symbols(steps * block) {}

  std::size_t class_steps, steps;
  std::vector<std::uint8_t> tables, symbols;
  std::vector<std::int32_t> escapes;
  std::vector<std::byte> low;
};

void write_classes(const std::vector<std::uint8_t>& classes, const Encoding& encoding, Script& script) {
  std::int32_t last = 0;
  for (std::size_t i = 0; i < script.class_steps * block; ++i) {
    const std::int32_t wanted = i < classes.size() ? classes[i] - last : 0;
    const bool known = encoding.known[class_table][static_cast<std::uint8_t>(wanted)];
    script.tables[i / block] = class_table;
    // Behind the last class a symbol is for nothing: any that the table knows will do.
    script.symbols[i] = static_cast<std::uint8_t>(known ? wanted : escape);
    if (i >= classes.size()) continue;
    if (!known) script.escapes.push_back(wanted);
    last = classes[i];
  }
}

void write_residuals(const Ints& residuals, const std::vector<std::uint8_t>& classes, const Encoding& encoding,
                     Script& script) {
  for (std::size_t b = 0; b < classes.size(); ++b) {
    const std::size_t k = classes[b], table = table_of(k);
    const auto width = static_cast<unsigned>(low_bits_of(k));
    const std::int32_t* const from = residuals.data() + b * block;
    std::uint8_t* const symbols = script.symbols.data() + (script.class_steps + b) * block;
    const auto& known = encoding.known[table];
    script.tables[script.class_steps + b] = static_cast<std::uint8_t>(table);
    symbols_of(from, low_bits_of(k), symbols);
    std::uint32_t unknown = 0;
    for (std::size_t i = 0; i < block; ++i) unknown |= std::uint32_t{!known[symbols[i]]} << i;
    std::uint32_t fields[block] = {};
    for (std::size_t i = 0; i < block && width > 0; ++i)
      fields[i] = static_cast<std::uint32_t>(from[i]) & ((1u << width) - 1);
    for (; unknown != 0; unknown &= unknown - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(unknown));
      symbols[i] = static_cast<std::uint8_t>(escape);
      fields[i] = 0;
      script.escapes.push_back(from[i]);
    }
    if (width == 0) continue;
    script.low.resize(script.low.size() + 4 * width);
    put_fields(fields, width, 0, script.low.data() + script.low.size() - 4 * width);
  }
}

// What the 32 coders leave behind: their first words, and the shared stream.
struct Stream {
  std::uint16_t starts[block];
  std::vector<std::uint16_t> words;
};

// Of each coder at each step: the bits it gives out, how many, and how many its decoder then has at hand.
struct Given {
  explicit Given(std::size_t steps) : bits(steps * block), widths(steps * block), counts(steps * block), asks(steps) {}

  std::vector<std::uint16_t> bits;
  std::vector<std::uint8_t> widths, counts;
  std::vector<std::uint32_t> asks;  // the coders that take a word, as bits
  std::uint32_t states[block];      // those a decoder begins with
};

// Last step first: a coder's state is what its decoder will have.
void run_backwards(const Script& script, const Encoding& encoding, Given& given) {
  std::uint32_t states[block];
  std::fill_n(states, block, table_size);
  for (std::size_t s = script.steps; s-- > 0;) {
    const Encoding::Step* const table = encoding.steps[script.tables[s]].data();
    const std::uint16_t* const next = encoding.states[script.tables[s]].data();
    const std::uint8_t* const symbols = script.symbols.data() + s * block;
    std::uint16_t* const bits = given.bits.data() + s * block;
    std::uint8_t* const widths = given.widths.data() + s * block;
    for (std::size_t i = 0; i < block; ++i) {
      const Encoding::Step step = table[symbols[i]];
      const std::uint32_t state = states[i], width = (state + step.widths) >> 16;
      widths[i] = static_cast<std::uint8_t>(width);
      bits[i] = static_cast<std::uint16_t>(state & ((1u << width) - 1));
      states[i] = next[static_cast<std::int32_t>(state >> width) + step.places];
    }
  }
  std::copy_n(states, block, given.states);
}

// Which coders take a word at which step; returns how many words they take.
std::size_t ask(std::size_t steps, Given& given) {
  std::uint8_t counts[block];
  std::fill_n(counts, block, std::uint8_t{16 - table_bits});
  std::size_t words = 0;
  for (std::size_t s = 0; s < steps; ++s) {
    const std::uint8_t* const widths = given.widths.data() + s * block;
    std::uint8_t few[block];
    std::copy_n(counts, block, given.counts.data() + s * block);
    for (std::size_t i = 0; i < block; ++i) {
      few[i] = counts[i] < table_bits;
      counts[i] = static_cast<std::uint8_t>(counts[i] + 16 * few[i] - widths[i]);
    }
    std::uint32_t asks = 0;
    for (std::size_t i = 0; i < block; i += 8) {  // eight bytes of 0 or 1 to eight bits
      const auto eight = load_le<std::uint64_t>(reinterpret_cast<const std::byte*>(few + i));
      asks |= static_cast<std::uint32_t>(eight * 0x0102040810204080 >> 56) << i;
    }
    given.asks[s] = asks;
    words += static_cast<std::size_t>(std::popcount(asks));
  }
  return words;
}

// The coders' bits in the order in which the decoder asks for words. Last step first, each coder's bits are one string,
// the next to be read lowest: what it asks for lies behind what it has.
Stream deal(const Script& script, const Encoding& encoding) {
  Given given(script.steps);
  run_backwards(script, encoding, given);
  std::size_t words = ask(script.steps, given);
  Stream out{{}, std::vector<std::uint16_t>(words)};
  const auto prepend = encoding_kernels().prepend;
  std::uint32_t strings[block] = {};
  for (std::size_t s = script.steps; s-- > 0;) {
    std::uint16_t asked[block];
    const std::size_t at = s * block;
    prepend(given.bits.data() + at, given.widths.data() + at, given.counts.data() + at, strings, asked);
    std::uint32_t asks = given.asks[s];
    words -= static_cast<std::size_t>(std::popcount(asks));
    for (std::uint16_t* to = out.words.data() + words; asks != 0; asks &= asks - 1)
      *to++ = asked[std::countr_zero(asks)];
  }
  for (std::size_t i = 0; i < block; ++i)
    out.starts[i] = static_cast<std::uint16_t>((given.states[i] - table_size) | strings[i] << table_bits);
  while (!out.words.empty() && out.words.back() == 0) out.words.pop_back();
  return out;
}

template <class T>
void append_items(std::vector<std::byte>& out, const T* from, std::size_t count) {
  const std::size_t at = out.size();
  out.resize(at + count * sizeof(T));
  if (count > 0) std::memcpy(out.data() + at, from, count * sizeof(T));
}

}  // namespace

// The cheapest way through the classes of successive blocks, their differences included.
std::vector<std::uint8_t> classes(const Ints& residuals, const Encoding& encoding, int reach, std::uint64_t* bits) {
  const std::size_t blocks = residuals.size() / block;
  std::vector<Size> sizes(blocks);
  encoding_kernels().sizes(residuals.data(), blocks, sizes.data());
  std::uint32_t differences[2 * most_classes + most_ways];  // their costs, from -64
  for (std::size_t i = 0; i < std::size(differences); ++i)
    differences[i] = encoding.cost[class_table][static_cast<std::uint8_t>(i - most_classes)];
  std::vector<Ways> ways(blocks);
  std::uint32_t so_far[most_ways] = {};
  std::uint64_t all = 0;
  Window last{0, 1};
  for (std::size_t b = 0; b < blocks; ++b) {
    std::uint32_t costs[most_classes], best[most_ways];
    const int near = nearest_class(sizes[b].sum);
    const Window all_now = block_costs(residuals.data() + b * block, near, encoding, costs);
    const Window now{std::max(all_now.first, near - reach), std::min(all_now.end, near + reach + 1)};
    encoding_kernels().extend(so_far, last.end - last.first, differences + most_classes + now.first - last.first, best,
                              ways[b].from);
    std::uint32_t least = ~std::uint32_t{0};
    for (int k = 0; k < now.end - now.first; ++k) least = std::min(least, so_far[k] = best[k] + costs[now.first + k]);
    for (int k = 0; k < now.end - now.first; ++k) so_far[k] -= least;
    all += least;
    ways[b].window = last = now;
  }
  if (bits != nullptr) *bits += all;
  return way_back(ways, so_far);
}

std::vector<std::byte> dense_tile(const Ints& residuals, const Encoding& encoding) {
  Script script(residuals.size() / block);
  const std::vector<std::uint8_t> chosen = classes(residuals, encoding, any_class);
  write_classes(chosen, encoding, script);
  write_residuals(residuals, chosen, encoding, script);
  const Stream stream = deal(script, encoding);
  std::vector<std::byte> out;
  const std::uint32_t counts[2] = {static_cast<std::uint32_t>(stream.words.size()),
                                   static_cast<std::uint32_t>(script.escapes.size())};
  append_items(out, counts, 2);
  append_items(out, stream.starts, block);
  append_items(out, stream.words.data(), stream.words.size());
  out.resize((out.size() + 3) / 4 * 4);
  append_items(out, script.low.data(), script.low.size());
  append_items(out, script.escapes.data(), script.escapes.size());
  return out;
}

std::uint64_t cost(const std::vector<const Draft*>& drafts, const Encoding& encoding) {
  std::uint64_t bits = 0;
  for (const Draft* draft : drafts) classes(draft->residuals, encoding, any_class, &bits);
  return bits;
}

AllFrequencies trained(const std::vector<const Draft*>& drafts, int rounds) {
  const AllFrequencies builtin = parse_tables(builtin_tables());
  AllFrequencies tables = builtin;
  for (int round = 0; round < rounds; ++round) {
    const int reach = round < 2 ? 2 : any_class;  // at first each class stays what it was meant for
    const auto encoding = std::make_unique<Encoding>(tables);
    std::vector<Histogram> seen(table_count, Histogram{});
    for (const Draft* draft : drafts) {
      const std::vector<std::uint8_t> chosen = classes(draft->residuals, *encoding, reach);
      for (std::size_t b = 0; b < chosen.size(); ++b) {
        ++seen[class_table][static_cast<std::uint8_t>(chosen[b] - (b == 0 ? 0 : chosen[b - 1]))];
        std::uint8_t symbols[block];
        symbols_of(draft->residuals.data() + b * block, low_bits_of(chosen[b]), symbols);
        for (const std::uint8_t symbol : symbols) ++seen[table_of(chosen[b])][symbol];
      }
    }
    // What was not seen among few values may yet come: a little of the built-in table is mixed in.
    for (std::size_t k = 0; k < table_count; ++k) {
      for (std::size_t s = 0; s < 256; ++s) seen[k][s] = seen[k][s] * 128 + builtin[k][s];
      tables[k] = normalised(seen[k]);
    }
  }
  return tables;
}

}  // namespace solar::codec
