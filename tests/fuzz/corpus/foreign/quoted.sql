INSERT INTO llama_bench (build_commit, n_gen, n_prompt, avg_ts) VALUES ('12345678', '8', '0', '-4.5');
