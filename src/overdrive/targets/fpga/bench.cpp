// Gives the design an input at every clock cycle, and writes down what it gives after every cycle.
//
//     bench INPUTS ANSWERS CYCLES
//
// INPUTS: for each input all bits of `model_inp`, the first one lowest, in as many whole words of 32 bits as they take.
// ANSWERS: the same of `model_out`, of each of CYCLES cycles: as many as there are inputs, and some more, in which the
// last one is held.

#include "Vmodel.h"
#include "verilated.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

template <typename Port> size_t words(const Port &port) { return (sizeof(port) + 3) / 4 * 4; }

int main(int count, char **words_given) {
    if (count != 4) {
        return 2;
    }
    FILE *inputs = std::fopen(words_given[1], "rb"), *answers = std::fopen(words_given[2], "wb");
    if (!inputs || !answers) {
        return 3;
    }
    Vmodel design;
    std::vector<char> given(words(design.model_inp)), found(words(design.model_out));
    for (long cycle = 0, last = std::atol(words_given[3]); cycle < last; ++cycle) {
        if (std::fread(given.data(), 1, given.size(), inputs) == given.size()) {
            std::memcpy(&design.model_inp, given.data(), sizeof(design.model_inp));
        }
        design.clk = 0;
        design.eval();
        design.clk = 1;
        design.eval();
        std::memcpy(found.data(), &design.model_out, sizeof(design.model_out));
        if (std::fwrite(found.data(), 1, found.size(), answers) != found.size()) {
            return 4;
        }
    }
    design.final();
    return std::fclose(answers) ? 4 : 0;
}
