INSERT INTO llama_bench (n_gen, n_gen) VALUES (1, 2);
