"""What a network does with a sentence: probabilities, attention, recorded searches and interventions."""
