// Writes what symbols and residuals read: 32 coders run backwards, their bits dealt out in the order they are wanted.
#include <algorithm>
#include <bit>
#include <memory>

#include "codec/draft.hpp"

namespace solar::codec {

namespace {

std::int32_t symbol_of(std::int32_t residual, std::size_t k) {
  const std::int32_t high = residual >> low_bits_of(k);
  return high < -127 || high > 127 ? escape : high;
}

// About the class whose mean is that of the block.
int nearest_class(const std::int32_t* residuals) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < block; ++i)
    sum += residuals[i] < 0 ? 0u - static_cast<std::uint32_t>(residuals[i]) : static_cast<std::uint32_t>(residuals[i]);
  if (sum == 0) return 0;
  // Half octaves of the mean, from the bits of the sum's square.
  const auto mean = static_cast<float>(sum) / block;
  const auto square = std::bit_cast<std::uint32_t>(mean * mean * 1.41421356f);
  return std::clamp(static_cast<int>(square >> 23) - 127 + 10, 0, static_cast<int>(most_classes) - 1);
}

// The cost of a block in one class; `symbols` are the residuals themselves where each fits a symbol.
std::uint32_t block_cost(const std::int32_t* residuals, const std::uint8_t* symbols, std::size_t k,
                         const Encoding& encoding) {
  const std::uint32_t* const costs = encoding.cost[table_of(k)].data();
  std::uint32_t bits = static_cast<std::uint32_t>(low_bits_of(k)) * block * 256;
  if (symbols != nullptr && k < 16)
    for (std::size_t i = 0; i < block; ++i) bits += costs[symbols[i]];
  else
    for (std::size_t i = 0; i < block; ++i) bits += costs[static_cast<std::uint8_t>(symbol_of(residuals[i], k))];
  return bits;
}

// The block's residuals as symbols, if all of them are.
bool as_symbols(const std::int32_t* residuals, std::uint8_t* symbols) {
  std::uint32_t far = 0;
  for (std::size_t i = 0; i < block; ++i) {
    far |= static_cast<std::uint32_t>(residuals[i]) + 127 > 254;
    symbols[i] = static_cast<std::uint8_t>(residuals[i]);
  }
  return far == 0;
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
    const bool known = encoding.known[class_table][static_cast<std::uint8_t>(wanted)] && wanted != escape;
    script.tables[i / block] = class_table;
    // Behind the last class a symbol is for nothing: any that the table knows will do.
    script.symbols[i] = static_cast<std::uint8_t>(known ? wanted : escape);
    if (i >= classes.size()) continue;
    if (!known) script.escapes.push_back(wanted);
    last = classes[i];
  }
}

void write_residuals(const std::vector<std::int32_t>& residuals, const std::vector<std::uint8_t>& classes,
                     const Encoding& encoding, Script& script) {
  for (std::size_t b = 0; b < classes.size(); ++b) {
    const std::size_t k = classes[b], table = table_of(k);
    const auto width = static_cast<unsigned>(low_bits_of(k));
    const std::uint32_t mask = (1u << width) - 1;
    std::uint8_t* const symbols = script.symbols.data() + (script.class_steps + b) * block;
    std::uint32_t fields[block];
    script.tables[script.class_steps + b] = static_cast<std::uint8_t>(table);
    for (std::size_t i = 0; i < block; ++i) {
      const std::int32_t residual = residuals[b * block + i], symbol = symbol_of(residual, k);
      const bool known = encoding.known[table][static_cast<std::uint8_t>(symbol)] && symbol != escape;
      symbols[i] = static_cast<std::uint8_t>(known ? symbol : escape);
      fields[i] = known ? static_cast<std::uint32_t>(residual) & mask : 0;
      if (!known) script.escapes.push_back(residual);
    }
    if (width == 0) continue;
    script.low.resize(script.low.size() + 4 * width);
    put_fields(fields, width, script.low.data() + script.low.size() - 4 * width);
  }
}

// What the 32 coders leave behind: their first words, and the shared stream.
struct Stream {
  std::uint16_t starts[block];
  std::vector<std::uint16_t> words;
};

// The bits each coder gives out at each step, last step first, and the states it ends in: those a decoder begins with.
void run_backwards(const Script& script, const Encoding& encoding, std::uint16_t* bits, std::uint8_t* widths,
                   std::uint32_t* states) {
  std::fill_n(states, block, table_size);
  for (std::size_t s = script.steps; s-- > 0;) {
    const auto& table = encoding.steps[script.tables[s]];
    const auto& next = encoding.states[script.tables[s]];
    for (std::size_t i = 0; i < block; ++i) {
      const Encoding::Step step = table[script.symbols[s * block + i]];
      const std::uint32_t width = (states[i] + step.widths) >> 16;
      widths[s * block + i] = static_cast<std::uint8_t>(width);
      bits[s * block + i] = static_cast<std::uint16_t>(states[i] & ((1u << width) - 1));
      states[i] = next[static_cast<std::size_t>(static_cast<std::int32_t>(states[i] >> width) + step.places)];
    }
  }
}

// One coder as its decoder will see it: the words it has asked for and not yet filled.
struct Filling {
  std::uint32_t held = 0, bits = 0, room = 16 - table_bits;  // of the word being filled
  std::uint32_t count = 16 - table_bits;                     // bits the decoder has at hand
  std::uint16_t* word;                                       // being filled; the next is filled after it
  std::uint16_t* next = nullptr;

  void ask(std::uint16_t* given) {
    (word == nullptr ? word : next) = given;
    count += 16;
  }
  void put(std::uint32_t more, std::uint32_t width) {
    held |= more << bits;
    bits += width;
    count -= width;
    if (bits < room) return;
    flush();
    held >>= room;
    bits -= room;
    room = 16;
    word = next;
    next = nullptr;
  }
  void flush() const {
    if (word != nullptr) *word = static_cast<std::uint16_t>(held & ((1u << room) - 1));
  }
};

// The coders' bits in the order in which the decoder asks for words.
Stream deal(const Script& script, const Encoding& encoding) {
  std::vector<std::uint16_t> bits(script.steps * block);
  std::vector<std::uint8_t> widths(script.steps * block);
  std::uint32_t states[block];
  run_backwards(script, encoding, bits.data(), widths.data(), states);
  Stream out{{}, std::vector<std::uint16_t>(script.steps * block)};
  Filling lanes[block];
  std::uint16_t firsts[block] = {};
  for (std::size_t i = 0; i < block; ++i) lanes[i].word = firsts + i;
  std::size_t words = 0;
  for (std::size_t s = 0; s < script.steps; ++s)
    for (std::size_t i = 0; i < block; ++i) {
      if (lanes[i].count < table_bits) lanes[i].ask(&out.words[words++]);
      lanes[i].put(bits[s * block + i], widths[s * block + i]);
    }
  for (std::size_t i = 0; i < block; ++i) {
    lanes[i].flush();
    out.starts[i] =
        static_cast<std::uint16_t>((states[i] - table_size) | static_cast<std::uint32_t>(firsts[i]) << table_bits);
  }
  while (words > 0 && out.words[words - 1] == 0) --words;
  out.words.resize(words);
  return out;
}

template <class T>
void append(std::vector<std::byte>& out, const T* from, std::size_t count) {
  const std::size_t at = out.size();
  out.resize(at + count * sizeof(T));
  if (count > 0) std::memcpy(out.data() + at, from, count * sizeof(T));
}

}  // namespace

std::vector<std::uint8_t> classes(const std::vector<std::int32_t>& residuals, const Encoding& encoding,
                                  std::uint64_t* bits) {
  std::vector<std::uint8_t> chosen(residuals.size() / block);
  int last = 0;
  for (std::size_t b = 0; b < chosen.size(); ++b) {
    const std::int32_t* const at = residuals.data() + b * block;
    const int near = nearest_class(at);
    std::uint8_t symbols[block];
    const std::uint8_t* const small = as_symbols(at, symbols) ? symbols : nullptr;
    std::uint64_t least = ~std::uint64_t{0};
    for (int k = std::max(0, near - 2); k <= std::min(near + 2, static_cast<int>(most_classes) - 1); ++k) {
      const std::uint64_t cost = block_cost(at, small, static_cast<std::size_t>(k), encoding) +
                                 encoding.cost[class_table][static_cast<std::uint8_t>(k - last)];
      if (cost < least) least = cost, chosen[b] = static_cast<std::uint8_t>(k);
    }
    last = chosen[b];
    if (bits != nullptr) *bits += least;
  }
  return chosen;
}

std::vector<std::byte> dense_tile(const std::vector<std::int32_t>& residuals, const Encoding& encoding) {
  Script script(residuals.size() / block);
  const std::vector<std::uint8_t> chosen = classes(residuals, encoding);
  write_classes(chosen, encoding, script);
  write_residuals(residuals, chosen, encoding, script);
  const Stream stream = deal(script, encoding);
  std::vector<std::byte> out;
  const std::uint32_t counts[2] = {static_cast<std::uint32_t>(stream.words.size()),
                                   static_cast<std::uint32_t>(script.escapes.size())};
  append(out, counts, 2);
  append(out, stream.starts, block);
  append(out, stream.words.data(), stream.words.size());
  out.resize((out.size() + 3) / 4 * 4);
  append(out, script.low.data(), script.low.size());
  append(out, script.escapes.data(), script.escapes.size());
  return out;
}

std::uint64_t cost(const std::vector<const Draft*>& drafts, const Encoding& encoding) {
  std::uint64_t bits = 0;
  for (const Draft* draft : drafts) classes(draft->residuals, encoding, &bits);
  return bits;
}

AllFrequencies trained(const std::vector<const Draft*>& drafts) {
  const AllFrequencies builtin = parse_tables(builtin_tables());
  AllFrequencies tables = builtin;
  for (int round = 0; round < 3; ++round) {
    const auto encoding = std::make_unique<Encoding>(tables);
    std::vector<Histogram> seen(table_count, Histogram{});
    for (const Draft* draft : drafts) {
      const std::vector<std::uint8_t> chosen = classes(draft->residuals, *encoding);
      for (std::size_t b = 0; b < chosen.size(); ++b) {
        ++seen[class_table][static_cast<std::uint8_t>(chosen[b] - (b == 0 ? 0 : chosen[b - 1]))];
        for (std::size_t i = 0; i < block; ++i)
          ++seen[table_of(chosen[b])][static_cast<std::uint8_t>(symbol_of(draft->residuals[b * block + i], chosen[b]))];
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
